import { spawnSync } from 'node:child_process';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Gateways } from './gateway_pair.js';
import { launch, Visit } from './chat_page.js';

const STORY = 'Tell me a short story.';
const redis = spawnSync('redis-server', ['--version']).status === 0;

describe.skipIf(!redis)(`two gateways${redis ? '' : ' (redis-server is not here)'}`, () => {
  let gateways: Gateways;
  let browser: Browser;
  beforeAll(async () => {
    [gateways, browser] = await Promise.all([Gateways.start(), launch()]);
  });
  afterAll(async () => {
    await browser.close();
    await gateways.stop();
  });

  it('go on with an answer when one of them is killed', async () => {
    const before = await Visit.begin(browser, gateways.url);
    const story = await before.say(STORY);
    await before.close();
    const visit = await Visit.begin(browser, gateways.url);
    await visit.send(STORY);
    await visit.under(20);
    await gateways.kill();
    await visit.banner.getByText('Nothing was lost.').waitFor();
    expect(await visit.finished()).toBe(story);
    expect(visit.wire.asked('response.create')).toHaveLength(1);
    expect(visit.wire.resumed).toEqual(['exact']);
    expect(await visit.say('What is 3 plus 4?')).toContain('7');
    expect(visit.complaints).toEqual([]);
    await visit.close();
  });
});

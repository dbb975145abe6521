import { spawnSync } from 'node:child_process';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { GatewayPair } from './gateway_pair.js';

const STORY = 'Tell me a short story.';
const redis = spawnSync('redis-server', ['--version']).status === 0;

describe.skipIf(!redis)(`two gateways${redis ? '' : ' (redis-server is not installed)'}`, () => {
  let gateways: GatewayPair;
  beforeAll(async () => {
    gateways = await GatewayPair.start();
  });
  afterAll(async () => {
    await gateways.stop();
  });

  it('continue a response when one of them is killed', async () => {
    const reference = await ChatPage.open(gateways.url);
    const expected = await reference.sendAndWait(STORY);
    await reference.close();
    const chat = await ChatPage.open(gateways.url);
    await chat.send(STORY);
    await chat.waitForCharacters(20);
    await gateways.kill();
    await chat.banner.getByText('Nothing was lost.').waitFor();
    expect(await chat.waitForResponse()).toBe(expected);
    expect(chat.wire.sentOf('response.create')).toHaveLength(1);
    expect(chat.wire.resumeOutcomes).toEqual(['exact']);
    expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
    expect(chat.consoleErrors).toEqual([]);
    await chat.close();
  });
});

/** Where a conversation's KV is when others need the room: the panel says it, and says it truly. */

import type { Browser, Locator } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

/** Room for one long conversation of 16 pages on the device and for one on the host, where a page has
 * 40 KiB in float32: not for two. */
const DEVICE = ['--num-gpu-blocks-override', '28', '--max-model-len', '400', '--dtype', 'float32'];
const HOST = ['--kv-offloading-size', '0.0008'];

let server: Server;
let browser: Browser;
beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start([...DEVICE, ...HOST]), launch()]);
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});

function fact(visit: Visit, name: string): Locator {
  return visit.page.locator('.panel .facts > div', { hasText: name }).locator('dd');
}

const TOKENS = /^[1-9][\d,]* tokens$/;

async function none(visit: Visit, place: string): Promise<void> {
  await fact(visit, place).getByText('none', { exact: true }).waitFor();
}

/** The panel and the server say the same of the last turn. */
async function lastTurn(visit: Visit, residency: string, words: string, caption: RegExp): Promise<void> {
  const told = (): string | undefined =>
    visit.wire.heard('response.done').at(-1)?.response.usage?.residency;
  await expect.poll(told).toBe(residency);
  await fact(visit, 'At the last turn').getByText(words, { exact: true }).waitFor();
  await visit.page.locator('.chart .caption').last().getByText(caption).waitFor();
}

/** Someone who has said so much that there is no room for another like them. */
async function talkative(word: string): Promise<Visit> {
  const visit = await Visit.begin(browser, server.url);
  await visit.limit(10);
  await visit.field.fill(`${word} `.repeat(80));
  await visit.field.press('Enter');
  await visit.page.locator('.message.assistant').waitFor();
  await visit.finished();
  await fact(visit, 'On the device').getByText(/^[\d,]{3,} of [\d,]{3,} tokens$/).waitFor();
  for (const place of ['In host memory', 'To be computed again']) await none(visit, place);
  return visit;
}

it('says what became of KV that others have pushed out', async () => {
  const first = await talkative('apple');
  const second = await talkative('river');
  await fact(first, 'In host memory').getByText(TOKENS).waitFor();
  await none(first, 'To be computed again');
  const third = await talkative('tiger');
  await fact(second, 'In host memory').getByText(TOKENS).waitFor();
  await none(second, 'To be computed again');
  await fact(first, 'To be computed again').getByText(TOKENS).waitFor();
  await none(first, 'In host memory');
  for (const visit of [first, second]) {
    const bar = visit.page.locator('.panel .bar.kv');
    await expect.poll(() => bar.getAttribute('aria-label')).toMatch(/^Tokens: [\d,]+ on the device, /);
  }

  for (const { visit, place, residency, words } of [
    { visit: second, place: 'In host memory', residency: 'host', words: 'came back from host memory' },
    { visit: first, place: 'To be computed again', residency: 'recomputed', words: 'was computed again' },
  ]) {
    await visit.say('What is 3 plus 4?');
    await lastTurn(visit, residency, words, new RegExp(`^Turn 2: .* reused; KV ${words}$`));
    await none(visit, place);
    await visit.say('What is 2 plus 2?');
    await lastTurn(visit, 'hot', 'was on the device', /^Turn 3: [\d,]+ prefilled, [\d,]+ reused$/);
  }
  for (const visit of [first, second, third]) {
    expect(visit.complaints).toEqual([]);
    await visit.close();
  }
});

it('says that it was computed again when its engine had died', async () => {
  const visit = await Visit.begin(browser, server.url);
  await visit.say('My name is Zorban.');
  await visit.say('What is 3 plus 4?');
  await lastTurn(visit, 'hot', 'was on the device', /^Turn 2: [\d,]+ prefilled, [\d,]+ reused$/);
  server.killEngine();
  await visit.say('What is my name?');
  const words = 'was computed again';
  await lastTurn(visit, 'recomputed', words, /^Turn 3: .* reused; KV was computed again$/);
  await visit.say('What is 2 plus 2?');
  await lastTurn(visit, 'hot', 'was on the device', /^Turn 4: [\d,]+ prefilled, [\d,]+ reused$/);
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

/** Where a conversation's KV is when others need the room: the panel says it, and says it truly. */

import type { Browser, Locator } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Server } from './server.js';
import { launch, Visit } from './visit.js';

/** A pool that holds one long conversation, and not two. */
const TINY = ['--num-gpu-blocks-override', '28', '--max-model-len', '400'];
const HOST = ['--kv-offloading-size', '0.1'];

let browser: Browser;
beforeAll(async () => {
  browser = await launch();
});
afterAll(async () => {
  await browser.close();
});

function fact(visit: Visit, name: string): Locator {
  return visit.page.locator('.panel .facts > div', { hasText: name }).locator('dd');
}

/** By the server, with the last answer. */
function told(visit: Visit): string | undefined {
  return visit.wire.heard('response.done').at(-1)?.response.usage?.residency;
}

function captions(visit: Visit): Locator {
  return visit.page.locator('.chart .caption').last();
}

/** Someone who has said so much that there is no room for another like them. */
async function talkative(server: Server, word: string): Promise<Visit> {
  const visit = await Visit.begin(browser, server.url);
  await visit.limit(10);
  await visit.field.fill(`${word} `.repeat(80));
  await visit.field.press('Enter');
  await visit.page.locator('.message.assistant').waitFor();
  await visit.finished();
  await fact(visit, 'On the device').getByText(/^[\d,]{3,} of [\d,]{3,} tokens$/).waitFor();
  return visit;
}

it.each([
  { options: TINY, kept: 'To be computed again', residency: 'recomputed', words: 'was computed again' },
  { options: [...TINY, ...HOST], kept: 'In host memory', residency: 'host', words: 'came back from host memory' },
])('says what became of KV that others have pushed out: $residency', async (world) => {
  const server = await Server.start(world.options);
  const idle = await talkative(server, 'apple');
  for (const place of ['In host memory', 'To be computed again']) {
    await fact(idle, place).getByText('none', { exact: true }).waitFor();
  }
  const other = await talkative(server, 'river');
  await fact(idle, world.kept).getByText(/^[\d,]+ tokens$/).waitFor();
  const bar = idle.page.locator('.panel .bar.kv');
  await expect.poll(() => bar.getAttribute('aria-label')).toMatch(/^Tokens: [\d,]+ on the device, /);

  await idle.say('What is 3 plus 4?');
  await expect.poll(() => told(idle)).toBe(world.residency);
  await fact(idle, 'At the last turn').getByText(world.words, { exact: true }).waitFor();
  await captions(idle).getByText(new RegExp(`^Turn 2: .* reused; KV ${world.words}$`)).waitFor();
  await fact(idle, world.kept).getByText('none', { exact: true }).waitFor();
  await idle.say('What is 2 plus 2?');
  await fact(idle, 'At the last turn').getByText('was on the device', { exact: true }).waitFor();
  await captions(idle).getByText(/^Turn 3: [\d,]+ prefilled, [\d,]+ reused$/).waitFor();

  expect([...idle.complaints, ...other.complaints]).toEqual([]);
  await idle.close();
  await other.close();
  await server.stop();
});

it('says that it was computed again when its engine had died', async () => {
  const server = await Server.start();
  const visit = await Visit.begin(browser, server.url);
  await visit.say('My name is Zorban.');
  await visit.say('What is 3 plus 4?');
  await fact(visit, 'At the last turn').getByText('was on the device', { exact: true }).waitFor();
  server.killEngine();
  await visit.say('What is my name?');
  await fact(visit, 'At the last turn').getByText('was computed again', { exact: true }).waitFor();
  await captions(visit).getByText(/^Turn 3: .* reused; KV was computed again$/).waitFor();
  await visit.say('What is 2 plus 2?');
  await fact(visit, 'At the last turn').getByText('was on the device', { exact: true }).waitFor();
  expect(visit.complaints).toEqual([]);
  await visit.close();
  await server.stop();
});

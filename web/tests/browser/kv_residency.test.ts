/** KV residency in the metrics panel, as KV is moved to host memory, evicted and recomputed. */

import type { Locator } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { Server } from './server.js';

/** Capacity for two long conversations of 16 pages, most of them on the device, but not for three (40 KiB per page in
 * float32). */
const DEVICE = ['--num-gpu-blocks-override', '28', '--max-model-len', '400', '--dtype', 'float32'];
const HOST = ['--kv-offloading-size', '0.0005'];

let server: Server;
beforeAll(async () => {
  server = await Server.start([...DEVICE, ...HOST]);
});
afterAll(async () => {
  await server.stop();
});

function statOf(chat: ChatPage, name: string): Locator {
  return chat.page.locator('.panel .facts > div', { hasText: name }).locator('dd');
}

/** Caption of a turn whose KV was recomputed, before its request or after. */
const RECOMPUTED = /^Turn \d: [\d,]+ prefilled, ([\d,]+ ready at the request, after some|after the) KV had been lost$/;
const TOKENS = /^[1-9][\d,]* tokens$/;

async function expectNoTokens(chat: ChatPage, place: string): Promise<void> {
  await statOf(chat, place).getByText('none', { exact: true }).waitFor();
}

/** Expect the server and the panel to report `residency` for the last turn. */
async function expectLastTurn(chat: ChatPage, residency: string, text: string, caption: RegExp): Promise<void> {
  const residencyOf = (): string | undefined =>
    chat.wire.receivedOf('response.done').at(-1)?.response.usage?.residency;
  await expect.poll(residencyOf).toBe(residency);
  await statOf(chat, 'At the last turn').getByText(text, { exact: true }).waitFor();
  await chat.page.locator('.chart .caption').last().getByText(caption).waitFor();
}

/** Open a conversation so long that a second one like it does not fit on the device. */
async function longConversation(word: string): Promise<ChatPage> {
  const chat = await ChatPage.open(server.url, { responseTokens: 10 });
  await chat.openPanel();
  await chat.input.fill(`${word} `.repeat(80));
  await chat.input.press('Enter');
  await chat.page.locator('.message.assistant').waitFor();
  await chat.waitForResponse();
  await statOf(chat, 'On the device').getByText(/^[\d,]{3,} of [\d,]{3,} tokens$/).waitFor();
  for (const place of ['In host memory', 'To be recomputed']) await expectNoTokens(chat, place);
  return chat;
}

it('shows KV that other conversations have displaced', async () => {
  const first = await longConversation('apple');
  const second = await longConversation('river');
  await statOf(first, 'In host memory').getByText(TOKENS).waitFor();
  await expectNoTokens(first, 'To be recomputed');
  const third = await longConversation('tiger');
  await statOf(second, 'In host memory').getByText(TOKENS).waitFor();
  await expectNoTokens(second, 'To be recomputed');
  await statOf(first, 'To be recomputed').getByText(TOKENS).waitFor();
  await expectNoTokens(first, 'In host memory');
  for (const chat of [first, second]) {
    const bar = chat.page.locator('.panel .bar.kv');
    await expect.poll(() => bar.getAttribute('aria-label')).toMatch(/^Tokens: [\d,]+ on the device, /);
  }

  for (const { chat, place, residency, text, caption } of [
    {
      chat: second,
      place: 'In host memory',
      residency: 'host',
      text: 'restored from host memory',
      caption: /^Turn 2: [\d,]+ prefilled, [\d,]+ reused, in part from host memory$/,
    },
    {
      chat: first,
      place: 'To be recomputed',
      residency: 'recomputed',
      text: 'lost, then recomputed',
      caption: RECOMPUTED,
    },
  ]) {
    await chat.sendAndWait('What is 3 plus 4?');
    await expectLastTurn(chat, residency, text, caption);
    await expectNoTokens(chat, place);
    await chat.sendAndWait('What is 2 plus 2?');
    await expectLastTurn(chat, 'hot', 'already on device', /^Turn 3: [\d,]+ prefilled, [\d,]+ reused$/);
  }
  for (const chat of [first, second, third]) {
    expect(chat.consoleErrors).toEqual([]);
    await chat.close();
  }
});

it('shows that KV was recomputed after the engine was lost', async () => {
  const chat = await ChatPage.open(server.url);
  await chat.openPanel();
  await chat.sendAndWait('My name is Zorban.');
  await chat.sendAndWait('What is 3 plus 4?');
  await expectLastTurn(chat, 'hot', 'already on device', /^Turn 2: [\d,]+ prefilled, [\d,]+ reused$/);
  server.killEngine();
  await chat.sendAndWait('What is my name?');
  await expectLastTurn(chat, 'recomputed', 'lost, then recomputed', RECOMPUTED);
  await chat.sendAndWait('What is 2 plus 2?');
  await expectLastTurn(chat, 'hot', 'already on device', /^Turn 4: [\d,]+ prefilled, [\d,]+ reused$/);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

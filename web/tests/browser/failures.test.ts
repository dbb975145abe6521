/** Failures of the model and the engine, and refusals of the server: messages, kept text, and retries. */

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { seriousViolations } from './axe.js';
import { ChatPage, launch } from './chat_page.js';
import { freePort, Subprocess } from './subprocess.js';

const failingServer = (port: number, ...options: string[]): Subprocess =>
  Subprocess.python('tests.browser.failing', ['--port', String(port), ...options], 'Listening on');

let browser: Browser;
let server: Subprocess;
let url: string;
beforeAll(async () => {
  const port = await freePort();
  url = `http://127.0.0.1:${port}/`;
  server = failingServer(port);
  [browser] = await Promise.all([launch(), server.start()]);
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});

it('reports a failed model, keeps the partial response and the draft, and retries', async () => {
  const chat = await ChatPage.open(browser, url);
  const missingResponse = chat.page.locator('.missing-response');
  const deltas = () => chat.wire.receivedOf('response.output_text.delta').map(({ delta }) => delta);
  await chat.limitResponseTokens(1900); // more than half a minute

  await chat.send('Hello?');
  await chat.waitForCharacters(5);
  await chat.input.fill('typed meanwhile');
  server.signal('SIGUSR1');
  await missingResponse.getByText('The model failed during the response.').waitFor();
  expect(chat.wire.receivedOf('response.done').at(-1)?.response.status).toBe('failed');
  await expect.poll(() => chat.page.locator('.message.cut .ending').innerText()).toBe('interrupted by an error');
  expect(await seriousViolations(chat)).toEqual([]);
  const received = deltas().join('');
  expect(await chat.storedTexts()).toEqual(['Hello?', received]);
  await expect.poll(() => chat.input.inputValue()).toBe('typed meanwhile');

  await chat.page.reload();
  await chat.waitForConnection();
  await missingResponse.getByText('The model failed during the response.').waitFor();
  expect(await chat.storedTexts()).toEqual(['Hello?', received]);
  await expect.poll(() => chat.input.inputValue()).toBe('typed meanwhile');

  await missingResponse.getByRole('button', { name: 'Try again' }).click();
  await missingResponse.getByText('The model failed before the response.').waitFor();
  expect(await chat.storedTexts()).toEqual(['Hello?']);
  server.signal('SIGUSR2');
  await chat.limitResponseTokens(60);
  const deltasBefore = deltas().length;
  await missingResponse.getByRole('button', { name: 'Try again' }).click();
  await chat.page.locator('.message.assistant').waitFor();
  await chat.waitForResponse();
  await expect.poll(() => missingResponse.count()).toBe(0);
  const ending = chat.page.locator('.message.cut .ending');
  await expect.poll(() => ending.innerText()).toBe('maximum response length reached');
  expect(await chat.storedTexts()).toEqual(['Hello?', deltas().slice(deltasBefore).join('')]);
  await expect.poll(() => chat.input.inputValue()).toBe('typed meanwhile');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('reports a lost engine, and continues the response on the next one', async () => {
  const chat = await ChatPage.open(browser, url);
  await chat.limitResponseTokens(250); // five seconds
  await chat.send('Hello?');
  await chat.waitForCharacters(5);
  server.signal('SIGHUP');
  const notice = chat.page.getByText('The model is restarting.');
  await notice.waitFor();
  await chat.input.fill('typed meanwhile');
  server.signal('SIGUSR2');
  await notice.waitFor({ state: 'detached' });
  await chat.waitForResponse();
  const deltas = chat.wire.receivedOf('response.output_text.delta').map(({ delta }) => delta);
  expect(await chat.storedTexts()).toEqual(['Hello?', deltas.join('')]);
  expect(chat.wire.receivedOf('response.done').at(-1)?.response.usage?.output_tokens).toBe(250);
  expect(chat.wire.sentOf('response.create')).toHaveLength(1);
  await expect.poll(() => chat.input.inputValue()).toBe('typed meanwhile');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('shows why a response was refused, and retries on request', async () => {
  const port = await freePort();
  const [limited, unlimited] = [failingServer(port, '--requests-per-minute', '1'), failingServer(port)];
  await limited.start();
  const chat = await ChatPage.open(browser, `http://127.0.0.1:${port}/`);
  const missingResponse = chat.page.locator('.missing-response');
  await chat.limitResponseTokens(5);
  await chat.sendAndWait('Hello?');
  await chat.send('And now?');
  await missingResponse.getByText(/^No response\. .*limit/).waitFor();
  await limited.kill();
  await unlimited.start();
  await chat.banner.getByText('restored from this browser').waitFor();
  await missingResponse.getByRole('button', { name: 'Try again' }).click();
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  await chat.waitForResponse();
  await expect.poll(() => missingResponse.count()).toBe(0);
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?', 'And now?']);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
  await unlimited.stop();
});

it('keeps a message that is too long for the model or the wire in the composer', async () => {
  const chat = await ChatPage.open(browser, url);
  const notice = chat.page.getByRole('alert');
  await chat.limitResponseTokens(5);
  await chat.sendAndWait('Hello?');
  for (const [text, reason] of [
    ['many words, '.repeat(2000), /context/],
    ['x'.repeat(3_000_000), 'too long to send'],
  ] as const) {
    await chat.input.fill(text);
    await chat.input.press('Enter');
    await notice.getByText(reason).waitFor();
    await expect.poll(async () => (await chat.input.inputValue()).trim() === text.trim()).toBe(true);
  }
  await chat.input.fill('Anybody?');
  await chat.input.press('Enter');
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  await chat.waitForResponse();
  const [first, , second, ...more] = await chat.storedTexts();
  expect([first, second]).toEqual(['Hello?', 'Anybody?']);
  expect(more).toHaveLength(1);
  expect(chat.wire.receivedOf('session.created')).toHaveLength(1);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

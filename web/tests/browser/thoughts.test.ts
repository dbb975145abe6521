/** The model's thoughts: folded above the response, and no part of its text. */

import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { freePort, Subprocess } from './subprocess.js';

const THOUGHT = 'Rome is warm.\nSo yes.';
const ANSWER = 'It is sunny.';
let url: string;
let server: Subprocess;
let chat: ChatPage;
beforeAll(async () => {
  const port = await freePort();
  url = `http://127.0.0.1:${port}/`;
  server = Subprocess.python('tests.browser.thinking', ['--port', String(port)], 'Listening on');
  await server.start();
});
afterAll(() => server.stop());
beforeEach(async () => {
  chat = await ChatPage.open(url);
  await chat.waitForConnection();
  await chat.page.getByLabel('Settings', { exact: true }).click();
  await chat.page.getByLabel('Reasoning').selectOption('Low');
  await chat.page.getByRole('button', { name: 'Save' }).click();
  await chat.page.locator('dialog').waitFor({ state: 'detached' });
});
afterEach(() => chat.close());

it('shows what the model thought folded, and again after a reload', async () => {
  expect(await chat.sendAndWait('The weather in Rome?')).toBe(ANSWER);
  const thought = chat.page.locator('.message.assistant .thought');
  const text = thought.locator('p');
  expect(await text.isVisible()).toBe(false);
  expect(await thought.locator('summary').innerText()).toMatch(/^Thought for /);
  await thought.locator('summary').click();
  expect(await text.innerText()).toBe(THOUGHT);
  expect(await chat.storedTexts()).toEqual(['The weather in Rome?', ANSWER]);
  expect(await violations(chat)).toEqual([]);
  await chat.page.reload();
  await chat.waitForConnection();
  await thought.locator('summary').click();
  expect(await text.innerText()).toBe(THOUGHT);
  expect(await chat.waitForResponse()).toBe(ANSWER);
  expect(chat.consoleErrors).toEqual([]);
});

it('shows the thought as it is written, if the reader has opened it', async () => {
  await chat.send('Is Rome warm?');
  const thought = chat.page.locator('.thought');
  await thought.getByText('Thinking …').click();
  expect(await thought.locator('p').isVisible()).toBe(true);
  expect(await chat.waitForResponse()).toBe(ANSWER);
  expect(await thought.locator('p').innerText()).toBe(THOUGHT);
});

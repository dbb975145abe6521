/** Failures of the model and the engine, and refusals of the server: messages, kept text, and retries. */

import { expect, it } from 'vitest';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { failing } from './shared.js';
import { freePort, Subprocess } from './subprocess.js';

const failingServer = (port: number, ...options: string[]): Subprocess =>
  Subprocess.python('tests.browser.failing', ['--port', String(port), ...options], 'Listening on');

it('reports a failed model, keeps the partial response and the draft, and retries', async () => {
  const chat = await ChatPage.open(failing.url, { responseTokens: 1900 }); // more than half a minute
  const missingResponse = chat.page.locator('.missing-response');
  const deltas = () => chat.wire.receivedOf('response.output_text.delta').map(({ delta }) => delta);

  await chat.send('Hello?');
  await chat.waitForCharacters(5);
  await chat.input.fill('typed meanwhile');
  failing.signal('SIGUSR1');
  await missingResponse.getByText('The model failed during the response.').waitFor();
  expect(chat.wire.receivedOf('response.done').at(-1)?.response.status).toBe('failed');
  await expect.poll(() => chat.page.locator('.message.cut .ending').innerText()).toBe('Interrupted by an error');
  expect(await violations(chat)).toEqual([]);
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
  failing.signal('SIGUSR2');
  await chat.limitResponseTokens(60);
  const deltasBefore = deltas().length;
  await missingResponse.getByRole('button', { name: 'Try again' }).click();
  await chat.page.locator('.message.assistant').waitFor();
  await chat.waitForResponse();
  await expect.poll(() => missingResponse.count()).toBe(0);
  const ending = chat.page.locator('.message.cut .ending');
  await expect.poll(() => ending.innerText()).toBe('Maximum response length reached');
  expect(await chat.storedTexts()).toEqual(['Hello?', deltas().slice(deltasBefore).join('')]);
  await expect.poll(() => chat.input.inputValue()).toBe('typed meanwhile');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('reports a lost engine, and continues the response on the next one', async () => {
  const chat = await ChatPage.open(failing.url, { responseTokens: 250 }); // five seconds
  await chat.send('Hello?');
  await chat.waitForCharacters(5);
  failing.signal('SIGHUP');
  const notice = chat.page.getByText('The model is restarting.');
  await notice.waitFor();
  await chat.input.fill('typed meanwhile');
  failing.signal('SIGUSR2');
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
  const chat = await ChatPage.open(`http://127.0.0.1:${port}/`, { responseTokens: 5 });
  const missingResponse = chat.page.locator('.missing-response');
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
  const chat = await ChatPage.open(failing.url, { responseTokens: 5 });
  const notice = chat.page.getByRole('alert');
  await chat.sendAndWait('Hello?');
  for (const [text, reason] of [
    ['many words, '.repeat(2000), /^Your message is too long: .* tokens; this model takes 2,000\.$/],
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

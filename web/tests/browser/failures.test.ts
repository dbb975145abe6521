/** A model that fails, and a server that refuses: what is said, what stays, and what one can do. */

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { serious } from './axe.js';
import { Command, freePort } from './subprocess.js';
import { launch, Visit } from './chat_page.js';

const on = (port: number, ...options: string[]): Command =>
  Command.python('tests.browser.failing', ['--port', String(port), ...options], 'Listening on');

let browser: Browser;
let breakable: Command;
let url: string;
beforeAll(async () => {
  const port = await freePort();
  url = `http://127.0.0.1:${port}/`;
  breakable = on(port);
  [browser] = await Promise.all([launch(), breakable.start()]);
});
afterAll(async () => {
  await browser.close();
  await breakable.stop();
});

it('says that the model failed, and keeps the words that came and those that are typed', async () => {
  const visit = await Visit.begin(browser, url);
  const unanswered = visit.page.locator('.unanswered');
  const deltas = () => visit.wire.heard('response.output_text.delta').map(({ delta }) => delta);
  await visit.limit(1900); // more than half a minute

  await visit.send('Hello?');
  await visit.under(5);
  await visit.field.fill('typed meanwhile');
  breakable.signal('SIGUSR1');
  await unanswered.getByText('The model failed while it answered.').waitFor();
  expect(visit.wire.heard('response.done').at(-1)?.response.status).toBe('failed');
  await expect.poll(() => visit.page.locator('.message.cut .ending').innerText()).toBe('broke off');
  expect(await serious(visit)).toEqual([]);
  const came = deltas().join('');
  expect(await visit.said()).toEqual(['Hello?', came]);
  await expect.poll(() => visit.field.inputValue()).toBe('typed meanwhile');

  await visit.page.reload();
  await visit.connected();
  await unanswered.getByText('The model failed while it answered.').waitFor();
  expect(await visit.said()).toEqual(['Hello?', came]);
  await expect.poll(() => visit.field.inputValue()).toBe('typed meanwhile');

  await unanswered.getByRole('button', { name: 'Try again' }).click();
  await unanswered.getByText('The model failed before it answered.').waitFor();
  expect(await visit.said()).toEqual(['Hello?']);
  breakable.signal('SIGUSR2');
  await visit.limit(60);
  const before = deltas().length;
  await unanswered.getByRole('button', { name: 'Try again' }).click();
  await visit.page.locator('.message.assistant').waitFor();
  await visit.finished();
  await expect.poll(() => unanswered.count()).toBe(0);
  const ending = visit.page.locator('.message.cut .ending');
  await expect.poll(() => ending.innerText()).toBe('ends here: no longer answer is allowed');
  expect(await visit.said()).toEqual(['Hello?', deltas().slice(before).join('')]);
  await expect.poll(() => visit.field.inputValue()).toBe('typed meanwhile');
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

it('says that the engine died, and goes on where it was when another one is there', async () => {
  const visit = await Visit.begin(browser, url);
  await visit.limit(250); // five seconds
  await visit.send('Hello?');
  await visit.under(5);
  breakable.signal('SIGHUP');
  const words = visit.page.getByText('The model is being started again.');
  await words.waitFor();
  await visit.field.fill('typed meanwhile');
  breakable.signal('SIGUSR2');
  await words.waitFor({ state: 'detached' });
  await visit.finished();
  const deltas = visit.wire.heard('response.output_text.delta').map(({ delta }) => delta);
  expect(await visit.said()).toEqual(['Hello?', deltas.join('')]);
  expect(visit.wire.heard('response.done').at(-1)?.response.usage?.output_tokens).toBe(250);
  expect(visit.wire.asked('response.create')).toHaveLength(1);
  await expect.poll(() => visit.field.inputValue()).toBe('typed meanwhile');
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

it('says why no answer is begun, and asks again when it is told to', async () => {
  const port = await freePort();
  const [strict, patient] = [on(port, '--requests-per-minute', '1'), on(port)];
  await strict.start();
  const visit = await Visit.begin(browser, `http://127.0.0.1:${port}/`);
  const unanswered = visit.page.locator('.unanswered');
  await visit.limit(5);
  await visit.say('Hello?');
  await visit.send('And now?');
  await unanswered.getByText(/^No answer\. .*limit/).waitFor();
  await strict.kill();
  await patient.start();
  await visit.banner.getByText('was told it again').waitFor();
  await unanswered.getByRole('button', { name: 'Try again' }).click();
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  await visit.finished();
  await expect.poll(() => unanswered.count()).toBe(0);
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['Hello?', 'And now?']);
  expect(visit.complaints).toEqual([]);
  await visit.close();
  await patient.stop();
});

it('keeps what is too long for the model, or for the wire, until it is made shorter', async () => {
  const visit = await Visit.begin(browser, url);
  const notice = visit.page.getByRole('alert');
  await visit.limit(5);
  await visit.say('Hello?');
  for (const [text, words] of [
    ['many words, '.repeat(2000), 'the context of the model holds'],
    ['x'.repeat(3_000_000), 'too long to be sent'],
  ] as const) {
    await visit.field.fill(text);
    await visit.field.press('Enter');
    await notice.getByText(words).waitFor();
    await expect.poll(async () => (await visit.field.inputValue()).trim() === text.trim()).toBe(true);
  }
  await visit.field.fill('Anybody?');
  await visit.field.press('Enter');
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  await visit.finished();
  const [first, , second, ...more] = await visit.said();
  expect([first, second]).toEqual(['Hello?', 'Anybody?']);
  expect(more).toHaveLength(1);
  expect(visit.wire.heard('session.created')).toHaveLength(1);
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

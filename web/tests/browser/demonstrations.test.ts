/** The welcome screen: its demonstrations on the real wire, with the figures of their turns, and the events of
 * a conversation as programs that run as pasted. */

import { execFile } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import type { RealtimeResponse } from '../../src/client/index.js';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { server } from './shared.js';

const PYTHON = process.env.CONTINUO_PYTHON ?? new URL('../../../.venv/bin/python', import.meta.url).pathname;

/** Factor by which the pauses of demonstrations are shortened. */
const SPEED_UP = 8;

/** Open the page with shorter pauses; a story is still read aloud at the pace of speech. */
async function openFast(url: string): Promise<ChatPage> {
  const chat = await ChatPage.open('about:blank');
  await chat.page.addInitScript((factor) => {
    const setRealTimeout = window.setTimeout.bind(window);
    Object.assign(window, {
      setTimeout: (run: () => void, ms = 0) => setRealTimeout(run, ms / factor),
    });
  }, SPEED_UP);
  await chat.page.goto(url);
  return chat;
}

/** Start a demonstration by its card. */
async function play(chat: ChatPage, title: string): Promise<void> {
  await chat.waitForConnection();
  await chat.page.getByRole('button', { name: title }).click();
  await chat.page.locator('.demonstration.running').waitFor();
}

/** Wait for the end of the demonstration, and return its result. */
async function result(chat: ChatPage): Promise<string> {
  await chat.page.locator('.demonstration:not(.running):visible').waitFor({ timeout: 60_000 });
  return chat.page.locator('.demonstration p').innerText();
}

/** Open the welcome screen again. */
async function tryAnother(chat: ChatPage): Promise<void> {
  await chat.page.getByRole('button', { name: 'Try another' }).click();
  await chat.page.locator('.welcome').waitFor();
  expect(await chat.page.locator('.demonstration').isVisible()).toBe(false);
}

function lastResponse(chat: ChatPage): RealtimeResponse {
  const done = chat.wire.receivedOf('response.done').at(-1);
  if (!done) throw new Error('no response is done');
  return done.response;
}

/** The figures of the last turn, as the page words them. */
function lastFigures(chat: ChatPage): { prefilled: number; reused: number; text: string } {
  const usage = lastResponse(chat).usage;
  const prefilled = usage?.input_token_details.prefilled_after_commit ?? 0;
  const reused = (usage?.input_tokens ?? 0) - prefilled;
  return { prefilled, reused, text: `${prefilled} prefilled, ${reused} reused` };
}

it('plays each demonstration, and explains it with the figures of its turn', async () => {
  const token = server.printedUrl.split('#demo=')[1] ?? '';
  expect(token.length).toBeGreaterThan(20);
  const chat = await openFast('about:blank');
  const { page, wire } = chat;
  const urls: string[] = [];
  page.on('request', (request) => urls.push(request.url()));
  await page.goto(server.printedUrl);
  await chat.waitForConnection();
  expect(page.url()).not.toContain(token);
  await page.locator('.welcome .lead').getByText(/^Chat with a language model on a server/).waitFor();
  expect(await page.locator('.welcome').innerText()).not.toMatch(/\bKV\b|cache|prefill|token/); // for newcomers
  expect(await page.locator('.welcome .card').count()).toBe(6);
  expect(await page.locator('.panel').isVisible()).toBe(false);
  expect(await violations(chat)).toEqual([]);

  await play(chat, 'Ask ten turns later');
  await page.locator('.demonstration progress').waitFor();
  const remembered = await result(chat);
  expect(await violations(chat)).toEqual([]);
  expect(await chat.userMessages.count()).toBe(12);
  expect(wire.receivedOf('response.done')).toHaveLength(12);
  const { text, prefilled, reused } = lastFigures(chat);
  expect(remembered).toMatch(/^It (remembers|has read the name)/);
  expect(remembered).toMatch(new RegExp(`First token after \\d.* m?s: ${text}\\.`));
  expect(remembered).toContain(`all ${prefilled + reused} tokens would be read again.`);
  expect(reused).toBeGreaterThan(prefilled);
  expect(wire.sentOf('input_text_buffer.append').length).toBeGreaterThan(12); // word by word
  await tryAnother(chat);

  await play(chat, 'Cut the connection');
  const cutOff = await result(chat);
  const whole = await chat.responses.last().innerText();
  const [, had, of] = (/^The page had (\d+) of (\d+) characters/.exec(cutOff) ?? []).map(Number);
  expect(of).toBe(whole.length);
  expect(had).toBeGreaterThanOrEqual(40);
  expect(had).toBeLessThan(whole.length);
  expect(wire.resumeOutcomes).toEqual(['exact']);
  expect(wire.sentOf('response.create')).toHaveLength(13);
  expect(lastResponse(chat).status).toBe('completed');
  await tryAnother(chat);

  await play(chat, 'Kill the engine');
  const killed = await result(chat);
  expect(killed).toMatch(/^Process \d+ died after \d+ of \d+ characters\. \d.* m?s later, another one continued/);
  const [interrupted, ...more] = wire.receivedOf('response.interrupted');
  expect(more).toEqual([]);
  expect(killed).toContain(`died after ${interrupted?.upto ?? 0} of`);
  expect(killed).toContain(`prompt again, ${lastFigures(chat).prefilled} tokens`);
  const story = await chat.responses.last().innerText();
  expect(story).toBe(whole); // greedy: the same story, cut or killed
  expect(lastResponse(chat).status).toBe('completed');
  expect(killed).toContain(`of ${story.length} characters`);
  await tryAnother(chat);

  await play(chat, 'Interrupt a story');
  const body = chat.responses.last();
  await page.waitForFunction(() => (document.querySelector('.message.assistant .body')?.textContent ?? '').length > 60);
  expect((await body.innerText()).length).toBeLessThan(story.length / 2); // though all of it may be written
  await page.getByRole('button', { name: 'Interrupt', exact: true }).click();
  const cut = await result(chat);
  const truncation = wire.received.find((event) => event.type === 'conversation.item.truncated');
  const heard = truncation?.type === 'conversation.item.truncated' ? (truncation.text_end ?? 0) : 0;
  expect(heard).toBeGreaterThan(60);
  expect(cut).toContain(`knows the ${heard} characters that you heard`);
  expect(cut).toContain(lastFigures(chat).text);
  const texts = await chat.storedTexts();
  expect(texts[1]).toBe(story.slice(0, heard)); // the same story: greedy, before and after the kill
  expect((await chat.responses.first().innerText()).trim()).toBe(story.slice(0, heard).trim());
  expect(texts[2]).toBe('Go on with the story.');
  expect(await chat.page.locator('.message.open').count()).toBe(0);
  await tryAnother(chat);

  await play(chat, 'Branch a conversation');
  const branched = await result(chat);
  expect(branched).toContain(lastFigures(chat).text);
  expect(lastFigures(chat).reused).toBeGreaterThan(10);
  expect(await chat.userMessages.allInnerTexts()).toEqual(['My name is Marlow.', 'What is my name?']);
  await page.getByRole('button', { name: 'Show the other one' }).click();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual([
    'My name is Marlow.',
    'Count from one to five.',
  ]);
  expect(await page.locator('.demonstration').isVisible()).toBe(false);
  expect(await page.locator('.conversations .branch').count()).toBe(1);
  await page.getByText('New conversation').click();

  await play(chat, 'Type, and watch');
  await page.locator('.demonstration p', { hasText: 'Each finished word is read at once.' }).waitFor();
  const readCount = async () => Number.parseInt(await page.locator('.demonstration p').innerText(), 10);
  let shown = 0;
  for (const word of ['What ', 'is ', 'three ', 'plus ']) {
    await page.keyboard.type(word);
    await expect.poll(readCount).toBeGreaterThan(shown);
    shown = await readCount();
  }
  await page.keyboard.type('four?');
  await page.keyboard.press('Enter');
  const typed = await result(chat);
  const figures = lastFigures(chat);
  const all = figures.prefilled + figures.reused;
  const words = /^Your message took (\d+) tokens of the prompt: (\d+) were prefilled while you typed, (\d+) after Enter\./;
  const [, took, before, after] = (words.exec(typed) ?? []).map(Number);
  expect([took, (before ?? 0) + (after ?? 0)]).toEqual([all, all]);
  expect(before).toBeGreaterThanOrEqual(shown);
  expect(urls.filter((url) => url.includes(token))).toEqual([]);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
}, 180_000);

it('stops a demonstration when asked, when the user types, or when another conversation is opened', async () => {
  const chat = await openFast(server.url);
  const { page } = chat;
  const bar = page.locator('.demonstration');
  await play(chat, 'Ask ten turns later');
  await chat.responses.nth(1).waitFor();
  await page.getByRole('button', { name: 'Stop', exact: true }).click();
  expect(await result(chat)).toMatch(/^Stopped\./);
  const count = await chat.userMessages.count();
  expect(count).toBeLessThan(12);
  expect(await chat.input.inputValue()).toBe('');
  await chat.sendAndWait('What is 2 plus 2?'); // the conversation goes on, with nothing else in it
  expect(await chat.userMessages.count()).toBe(count + 1);
  expect(await bar.isVisible()).toBe(false);

  await page.getByText('New conversation').click();
  await play(chat, 'Ask ten turns later');
  await chat.responses.first().waitFor();
  await chat.input.pressSequentially('H');
  expect(await result(chat)).toContain('because you typed');
  await bar.getByLabel('Close').click();
  expect(await bar.isVisible()).toBe(false);

  await page.getByText('New conversation').click();
  await play(chat, 'Interrupt a story');
  await page.getByRole('button', { name: 'Interrupt', exact: true }).waitFor();
  await page.locator('.conversations a').last().click();
  await expect.poll(() => bar.isVisible()).toBe(false);
  expect(chat.wire.sentOf('conversation.item.truncate')).toEqual([]);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('offers no kill without the token, and refuses a token of an earlier start', async () => {
  const chat = await ChatPage.open(server.url);
  const { page } = chat;
  await chat.waitForConnection();
  await page.getByRole('button', { name: 'Branch a conversation' }).waitFor();
  expect(await page.getByRole('button', { name: 'Kill the engine' }).count()).toBe(0);
  await page.evaluate(() => {
    location.hash = '#demo=stale';
  });
  await play(chat, 'Kill the engine');
  expect(await result(chat)).toBe('The server has been restarted: open the address that it printed.');
  expect(page.url()).not.toContain('stale');
  await tryAnother(chat);
  await page.getByRole('button', { name: 'Branch a conversation' }).waitFor();
  expect(await page.getByRole('button', { name: 'Kill the engine' }).count()).toBe(0);
  await page.goto('about:blank');
  await page.goto(server.printedUrl);
  await page.getByRole('button', { name: 'Kill the engine' }).waitFor();
  await page.reload();
  await page.getByRole('button', { name: 'Kill the engine' }).waitFor();
  await chat.close();
});

it('copies what was sent as programs that run as pasted, and shows sizes and times of events', async () => {
  const permissions = ['clipboard-read', 'clipboard-write'];
  const chat = await ChatPage.open(server.url, { permissions });
  const { page } = chat;
  await chat.waitForConnection();
  const questions = ['My name is Marlow.', 'What is "3 plus 4"?\u2028'];
  const answers = [];
  for (const question of questions) answers.push(await chat.sendAndWait(question));
  await chat.openPanel();
  await page.locator('.log > summary').click();
  const row = (type: string) => page.locator('.events > li', { has: page.getByText(type, { exact: true }) });
  const summaryOf = (type: string) => row(type).last().locator('summary').innerText();
  const bytesOf = (event: unknown) => `${Buffer.byteLength(JSON.stringify(event))} B`;
  await row('response.done').last().waitFor();
  const [request] = chat.wire.sentOf('response.create').slice(-1);
  expect((await summaryOf('response.create')).split(/\s+/)).toEqual(['↑', 'response.create', ...bytesOf(request).split(' '), '+0', 'ms']);
  expect(await summaryOf('response.created')).toMatch(/^↓\s+response\.created\s+\d+ B\s+\+[\d.]+ m?s$/);
  expect(await summaryOf('response.output_text.delta')).toMatch(/× \d+\s+[\d.]+ k?B\s+\+[\d.]+ m?s$/);
  expect(await summaryOf('rate_limits.updated')).toMatch(/\d\d:\d\d:\d\d$/); // after the turn
  await page.getByLabel('Direction').selectOption('sent');
  await expect.poll(() => page.locator('.events > li.received').count()).toBe(0);
  expect(await page.locator('.events > li.sent').count()).toBeGreaterThan(4);
  await page.getByLabel('Filter events').fill('commit');
  await expect.poll(() => page.locator('.events > li').count()).toBe(2);
  expect(await violations(chat)).toEqual([]);

  const copied = async (language: string): Promise<string> => {
    await page.getByRole('button', { name: `Copy as ${language}` }).click();
    await page.locator('.copies .done', { hasText: language }).waitFor();
    return page.evaluate(() => navigator.clipboard.readText());
  };
  const folder = mkdtempSync(join(tmpdir(), 'continuo-'));
  const run = async (program: string, args: string[], name: string, code: string): Promise<string> => {
    writeFileSync(join(folder, name), code);
    const { stdout } = await promisify(execFile)(program, [...args, join(folder, name)], { timeout: 30_000 });
    return stdout.trim();
  };
  const expected = answers.join('\n');
  expect(await run(PYTHON, [], 'code.py', await copied('Python'))).toBe(expected);
  const javaScript = await copied('JavaScript');
  const major = Number(process.versions.node.split('.')[0]);
  const flags = major < 22 ? ['--experimental-websocket'] : [];
  expect(await run(process.execPath, flags, 'code.js', javaScript)).toBe(expected);
  const printed: string[] = [];
  page.on('console', (message) => printed.push(message.text()));
  await page.evaluate(javaScript); // as in the browser's console
  await expect.poll(() => printed.join('\n')).toBe(expected);
  await chat.close();
});

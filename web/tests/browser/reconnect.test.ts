import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

let server: Server;
let browser: Browser;
let visit: Visit;
/** The answer to it, when nothing gets in the way. */
let story: string;
beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
  visit = await Visit.begin(browser, server.url);
  story = await visit.say(STORY);
  await visit.close();
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});
beforeEach(async () => {
  visit = await Visit.begin(browser, server.url);
  await visit.connected();
});
afterEach(async () => {
  await visit.close();
});

const STORY = 'Tell me a short story.';

/** It went on where it was: one answer, asked for once, and nothing told anew. */
async function told(): Promise<void> {
  expect(await visit.finished()).toBe(story);
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual([STORY]);
  await expect.poll(() => visit.answers.count()).toBe(1);
  const { wire } = visit;
  expect(wire.asked('response.create')).toHaveLength(1);
  expect(new Set(wire.heard('response.created').map(({ response }) => response.id)).size).toBe(1);
  expect(wire.heard('session.created')).toHaveLength(1);
  expect(wire.resumed.length).toBeGreaterThan(0);
  expect(new Set(wire.resumed)).toEqual(new Set(['exact']));
  expect(await visit.say('What is 3 plus 4?')).toContain('7');
  expect(visit.complaints).toEqual([]);
}

it('goes on after a reload in the middle of an answer', async () => {
  await visit.send(STORY);
  await visit.under(20);
  await visit.page.reload();
  await told();
  const [latency, tokens] = [visit.page.locator('.chart').first(), visit.page.locator('.chart').last()];
  await tokens.getByText(/^Turn 2: /).waitFor(); // also the one whose beginning this page has not seen
  await latency.getByText(/^Turn 2: first token/).waitFor();
  await visit.page.locator('.message.assistant .cost').first().waitFor({ state: 'attached' });
  await expect
    .poll(() => visit.page.locator('.message.assistant .cost').first().getAttribute('title'))
    .toMatch(/^\d+ tokens; \d+ prefilled, \d+ reused from KV\.$/);
});

it('goes on when the connection was cut in the middle of an answer', async () => {
  await visit.send(STORY);
  await visit.under(20);
  await visit.page.getByLabel(/Cut the connection/).click();
  await visit.banner.getByText('Nothing was lost.').waitFor();
  await told();
});

it('goes on after a time offline, and keeps what was written meanwhile', async () => {
  await visit.send(STORY);
  await visit.under(20);
  await visit.context.setOffline(true);
  await visit.banner.getByText('offline').waitFor();
  await visit.field.fill('What is 2 plus 2?');
  await visit.context.setOffline(false);
  expect(await visit.finished()).toBe(story);
  await expect.poll(() => visit.field.inputValue()).toBe('What is 2 plus 2?');
  await visit.field.press('Enter');
  await visit.page.locator('.message').nth(3).waitFor();
  expect(await visit.finished()).toContain('4');
});

it('sends later what was sent offline, also after a reload', async () => {
  await visit.say('What is 3 plus 4?');
  await visit.page.route('**/v1/**', (route) => route.abort());
  await visit.page.getByLabel(/Cut the connection/).click();
  await visit.send('What is 2 plus 2?');
  await visit.page.locator('.unsent').waitFor();
  await visit.page.reload();
  await visit.page.locator('.unsent').waitFor();
  await visit.page.unroute('**/v1/**');
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  expect(await visit.finished()).toContain('4');
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['What is 3 plus 4?', 'What is 2 plus 2?']);
});

it('goes on when the server was killed in the middle of an answer, and came back', async () => {
  await visit.send(STORY);
  await visit.under(20);
  await server.kill();
  await visit.banner.getByText('Not connected').waitFor();
  await visit.field.fill('still typing');
  await server.start();
  expect(await visit.finished()).toBe(story);
  await expect.poll(() => visit.field.inputValue()).toBe('still typing');
  await visit.field.fill('');
  await told();
});

it('goes on when its engine was killed in the middle of an answer', async () => {
  await visit.send(STORY);
  await visit.under(20);
  server.killEngine();
  expect(await visit.finished()).toBe(story);
  expect(visit.wire.asked('response.create')).toHaveLength(1);
  expect(visit.wire.heard('session.created')).toHaveLength(1);
  const admin = await Visit.tab(visit.context, `${server.url}admin`);
  await admin.page.locator('.warnings .warning, .warnings .error').first().waitFor();
  expect(visit.complaints).toEqual([]);
});

it('is in one tab at a time, and can be taken back', async () => {
  await visit.say('What is 3 plus 4?');
  await expect.poll(() => visit.page.evaluate(() => Object.keys(localStorage).length)).toBeGreaterThan(1);
  const other = await Visit.tab(visit.context, visit.page.url());
  await visit.banner.getByText('another tab').waitFor();
  await expect.poll(() => other.answers.count()).toBe(1);
  expect(await other.say('What is 2 plus 2?')).toContain('4');
  await visit.field.fill('written here meanwhile');
  await visit.page.getByRole('button', { name: 'Continue here' }).click();
  await other.banner.getByText('another tab').waitFor();
  await expect.poll(() => visit.answers.count()).toBe(2);
  await expect.poll(() => visit.field.inputValue()).toBe('written here meanwhile');
  await visit.field.fill('');
  expect(await visit.say('What is 1 plus 1?')).toContain('2');
  const question = other.page.locator('.message.user').first();
  await question.hover();
  await question.getByLabel('Edit and ask again').click();
  await other.page.getByLabel('Edit message').fill('What is 2 plus 6?');
  await other.page.getByLabel('Edit message').press('Enter');
  await visit.banner.getByText('another tab').waitFor();
  await expect.poll(() => other.questions.allInnerTexts()).toEqual(['What is 2 plus 6?']);
  expect(await other.finished()).toContain('8');
});

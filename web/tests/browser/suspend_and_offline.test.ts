import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Cable } from './tcp_proxy.js';
import { Command, freePort } from './subprocess.js';
import { launch, Visit } from './chat_page.js';

let browser: Browser;
/** So slow that an answer is not there before the sleep begins. */
let slow: Command;
let cable: Cable;
beforeAll(async () => {
  const port = await freePort();
  slow = Command.python('tests.browser.failing', ['--port', String(port)], 'Listening on');
  cable = await Cable.lay(() => [port]);
  [browser] = await Promise.all([launch(), slow.start()]);
});
afterAll(async () => {
  await browser.close();
  cable.close();
  await slow.stop();
});

it.each([
  ['a sleep', false],
  ['a sleep in which the connection died without a word', true],
])('goes on where it was after %s', async (_, silent) => {
  const visit = await Visit.begin(browser, cable.url);
  await visit.limit(150);
  await visit.send('Hello?');
  await visit.under(5);
  await visit.field.fill('typed before');
  const cdp = await visit.context.newCDPSession(visit.page);
  await cdp.send('Page.setWebLifecycleState', { state: 'frozen' });
  if (silent) cable.fallSilent();
  await new Promise((resolve) => setTimeout(resolve, 1000)); // nothing moves, here too
  await cdp.send('Page.setWebLifecycleState', { state: 'active' });
  // Who wakes up is told so by the browser, but not by CDP.
  await visit.page.evaluate(() => document.dispatchEvent(new Event('resume')));
  await visit.finished();
  const [done] = visit.wire.heard('response.done');
  expect(done?.response.output).toMatchObject([{ content: [{ text: (await visit.said())[1] }] }]);
  expect(done?.response.usage?.output_tokens).toBe(150);
  await expect.poll(() => visit.field.inputValue()).toBe('typed before');
  expect(visit.wire.asked('response.create')).toHaveLength(1);
  expect(visit.wire.heard('session.created')).toHaveLength(1);
  expect(visit.wire.resumed.filter((how) => how !== 'exact')).toEqual([]);
  if (silent) expect(visit.wire.resumed).toContain('exact');
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

it.each([
  ['as it was', false],
  ['but not if it was changed since', true],
])('sends what was sent offline in an answer, %s', async (_, changed) => {
  const visit = await Visit.begin(browser, cable.url);
  await visit.limit(600);
  await visit.send('Hello?');
  await visit.under(5);
  await visit.context.setOffline(true);
  await visit.banner.getByText('offline').waitFor();
  await visit.send('And you?');
  await visit.page.getByLabel('Being sent').waitFor();
  if (changed) {
    await visit.field.fill('And they?');
    await visit.page.getByLabel('Send (Enter)').waitFor();
  }
  await visit.context.setOffline(false);
  await visit.page.locator('.message.cut').getByText('stopped').waitFor();
  if (changed) {
    await visit.finished();
    await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['Hello?']);
    await expect.poll(() => visit.field.inputValue()).toBe('And they?');
    await visit.field.press('Enter');
  }
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  await visit.stop(5);
  await visit.finished();
  const second = changed ? 'And they?' : 'And you?';
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['Hello?', second]);
  await expect.poll(() => visit.field.inputValue()).toBe('');
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

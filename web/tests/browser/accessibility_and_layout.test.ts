/** How the page looks and feels: for every eye and hand, and after five hundred turns. */

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { serious } from './axe.js';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

let server: Server;
let browser: Browser;
beforeAll(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});

it.each(['light', 'dark'] as const)('is for everybody, in its %s colours', async (colorScheme) => {
  const visit = await Visit.begin(browser, server.url, { colorScheme, reducedMotion: 'reduce' });
  await visit.connected();
  expect(await serious(visit)).toEqual([]);
  await visit.say('What is 3 plus 4?');
  await visit.page.locator('.log > summary').click();
  expect(await serious(visit)).toEqual([]);
  await visit.page.locator('.message.user').hover();
  await visit.page.getByLabel('Edit and ask again').click();
  expect(await serious(visit)).toEqual([]);
  await visit.page.getByLabel('Edit message').press('Escape');
  await visit.page.getByLabel('Settings', { exact: true }).click();
  expect(await serious(visit)).toEqual([]);
  await visit.page.goto(`${server.url}admin`);
  await visit.page.getByText('Held by conversations').waitFor();
  expect(await serious(visit)).toEqual([]);
  await visit.close();
});

it('is usable with the keyboard alone, and on a small screen', async () => {
  const visit = await Visit.begin(browser, server.url, { viewport: { width: 360, height: 700 } });
  await visit.connected();
  await visit.page.keyboard.press('/');
  await visit.page.keyboard.type('What is 3 plus 4?');
  await visit.page.keyboard.press('Enter');
  await visit.page.locator('.message.assistant').waitFor();
  expect(await visit.finished()).toContain('7');
  const wide = await visit.page.evaluate(() => document.documentElement.scrollWidth);
  expect(wide).toBeLessThanOrEqual(360);
  expect(await serious(visit)).toEqual([]);
  await visit.close();
});

it('is light or dark as the system is, or as one wishes', async () => {
  const visit = await Visit.begin(browser, server.url, { colorScheme: 'light' });
  const paper = () => visit.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await paper();
  await visit.page.emulateMedia({ colorScheme: 'dark' });
  const dark = await paper();
  expect(dark).not.toBe(light);
  await visit.page.getByLabel('Light or dark').click();
  expect(await paper()).toBe(light);
  await visit.page.reload();
  expect(await paper()).toBe(light);
  await visit.close();
});

it('covers a small conversation with nothing that stays in the way', async () => {
  const visit = await Visit.begin(browser, server.url, { viewport: { width: 390, height: 700 } });
  await visit.say('What is 3 plus 4?');
  const [others, figures] = [visit.page.locator('.sidebar'), visit.page.locator('.panel')];
  await visit.page.getByRole('button', { name: 'Conversations' }).click();
  await others.getByText('New conversation').click();
  await expect.poll(() => others.isVisible()).toBe(false);
  await expect.poll(() => visit.questions.count()).toBe(0);
  await visit.page.getByRole('button', { name: 'Conversations' }).click();
  await others.locator('a').last().click();
  await expect.poll(() => others.isVisible()).toBe(false);
  await expect.poll(() => visit.questions.count()).toBe(1);
  await visit.page.getByRole('button', { name: 'Live figures' }).click();
  await figures.waitFor();
  await visit.page.locator('.scroller').click({ position: { x: 5, y: 300 } });
  await expect.poll(() => figures.isVisible()).toBe(false);
  await visit.close();
});

it('stays smooth in a conversation of five hundred turns', async () => {
  const visit = await Visit.begin(browser, server.url);
  await visit.connected();
  await visit.say('What is 3 plus 4?');
  await visit.page.evaluate(longConversation);
  await visit.page.reload();
  await visit.connected();
  await visit.finished();
  await expect.poll(() => visit.page.locator('.chart .caption').first().innerText()).toContain('Turn 500');
  await visit.page.evaluate(() => {
    const longest = { ms: 0 };
    Object.assign(window, { longest });
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) longest.ms = Math.max(longest.ms, duration);
    }).observe({ type: 'longtask' });
  });
  // What else runs on this machine can hold the browser up; the best of three is the page's own.
  const longest: number[] = [];
  for (let attempt = 0; attempt < 3 && !longest.some((ms) => ms <= 100); attempt += 1) {
    await visit.page.evaluate(() => {
      (window as unknown as { longest: { ms: number } }).longest.ms = 0;
    });
    await visit.say('Tell me a short story.');
    longest.push(
      await visit.page.evaluate(() => (window as unknown as { longest: { ms: number } }).longest.ms),
    );
  }
  expect(Math.min(...longest)).toBeLessThanOrEqual(100);
  await visit.close();
}, 180_000);

/** Makes the conversation that the page has stored one of five hundred turns, as its page would have
 * stored them. */
function longConversation(): void {
  dispatchEvent(new Event('pagehide'));
  const name = `continuo.talk.${location.hash.slice(1)}`;
  const kept = JSON.parse(localStorage.getItem(name) ?? '') as {
    saved: { items: { id: string }[]; turns: { id: string; items: string[] }[] };
    metrics: { id: string; ttft: number }[];
  };
  const { saved, metrics } = kept;
  const [items, turns, figures] = [[...saved.items], [...saved.turns], [...metrics]];
  for (let n = 1; n < 500; n += 1) {
    const named = new Map(items.map((item) => [item.id, `${item.id}_${n}`]));
    saved.items.unshift(...items.map((item) => ({ ...item, id: `${item.id}_${n}` })));
    saved.turns.unshift(
      ...turns.map((turn) => ({
        ...turn,
        id: `${turn.id}_${n}`,
        items: turn.items.map((id) => named.get(id) ?? id),
      })),
    );
    metrics.unshift(...figures.map((one) => ({ ...one, id: `${one.id}_${n}` })));
  }
  localStorage.setItem(name, JSON.stringify(kept));
  // What the page stores when it is left would undo it.
  Storage.prototype.setItem = () => undefined;
}

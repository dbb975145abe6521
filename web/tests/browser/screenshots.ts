/** Draws docs/screenshots, with `npm run pictures`. */

import { mkdirSync } from 'node:fs';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, it } from 'vitest';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

const FOLDER = new URL('../../../docs/screenshots/', import.meta.url).pathname;
const LARGE = { viewport: { width: 1280, height: 800 } };

let server: Server;
let browser: Browser;
beforeAll(async () => {
  mkdirSync(FOLDER, { recursive: true });
  [server, browser] = await Promise.all([Server.start(), launch()]);
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});

async function draw(visit: Visit, name: string): Promise<void> {
  await visit.page.mouse.move(640, 20);
  await visit.page.waitForTimeout(400);
  await visit.page.screenshot({ path: `${FOLDER}${name}.png` });
}

async function talk(visit: Visit): Promise<void> {
  await visit.say('My name is Zorban and I live in Quiltown.');
  await visit.say('What is 3 plus 4?');
  await visit.say('Count from one to ten.');
  await visit.say('What is 2 plus 6?');
  await visit.say('Where do I live?');
}

it.each(['light', 'dark'] as const)('a conversation, %s', async (colorScheme) => {
  const visit = await Visit.begin(browser, server.url, { ...LARGE, colorScheme });
  await visit.connected();
  await draw(visit, `welcome-${colorScheme}`);
  await talk(visit);
  const second = visit.page.locator('.message.assistant').nth(2);
  await second.hover();
  await second.getByLabel('Branch from here').click();
  await visit.connected();
  await visit.say('What is my name?');
  await visit.page.locator('.talks a').last().click();
  await visit.connected();
  await visit.page.locator('.talks a').first().click();
  await visit.connected();
  await visit.say('Tell me a short story.');
  await draw(visit, `talk-${colorScheme}`);
  await visit.page.goto(`${server.url}admin`);
  await visit.page.getByText(/\d %$/).last().waitFor();
  await visit.page.waitForTimeout(2500);
  await draw(visit, `admin-${colorScheme}`);
  await visit.close();
});

it('a tool call, and settings', async () => {
  const visit = await Visit.begin(browser, server.url, LARGE);
  await visit.connected();
  await visit.page.getByLabel('Settings', { exact: true }).click();
  await visit.page.getByText('Put an example in').click();
  await visit.page.locator('dialog').evaluate((dialog) => {
    dialog.scrollTop = 0;
  });
  await draw(visit, 'settings-light');
  await visit.page.getByRole('button', { name: 'Save' }).click();
  await visit.page.locator('dialog').waitFor({ state: 'detached' });
  await visit.send('What is the weather in Paris?');
  await visit.page.getByLabel('Result of get_weather').waitFor();
  await draw(visit, 'tool-light');
  await visit.close();
});

it('a server that is gone, on a small screen', async () => {
  const small = { viewport: { width: 390, height: 760 }, colorScheme: 'dark' as const };
  const visit = await Visit.begin(browser, server.url, small);
  await visit.connected();
  await talk(visit);
  await visit.send('Tell me a short story.');
  await visit.under(20);
  await server.kill();
  await visit.banner.getByText('Try now').waitFor();
  await draw(visit, 'lost-dark');
  await visit.close();
  await server.start();
});

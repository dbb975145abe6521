/** Takes the screenshots in docs/screenshots: `npm run screenshots`. */

import { mkdirSync } from 'node:fs';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, it } from 'vitest';
import { ChatPage, launch } from './chat_page.js';
import { Server } from './server.js';

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

async function screenshot(chat: ChatPage, name: string): Promise<void> {
  await chat.page.mouse.move(640, 20);
  await chat.page.waitForTimeout(400);
  await chat.page.screenshot({ path: `${FOLDER}${name}.png` });
}

async function sendExampleMessages(chat: ChatPage): Promise<void> {
  await chat.sendAndWait('My name is Zorban and I live in Quiltown.');
  await chat.sendAndWait('What is 3 plus 4?');
  await chat.sendAndWait('Count from one to ten.');
  await chat.sendAndWait('What is 2 plus 6?');
  await chat.sendAndWait('Where do I live?');
}

it.each(['light', 'dark'] as const)('a conversation, %s', async (colorScheme) => {
  const chat = await ChatPage.open(browser, server.url, { ...LARGE, colorScheme });
  await chat.waitForConnection();
  await screenshot(chat, `welcome-${colorScheme}`);
  await sendExampleMessages(chat);
  const response = chat.page.locator('.message.assistant').nth(2);
  await response.hover();
  await response.getByLabel('Branch from here').click();
  await chat.waitForConnection();
  await chat.sendAndWait('What is my name?');
  await chat.page.locator('.conversations a').last().click();
  await chat.waitForConnection();
  await chat.page.locator('.conversations a').first().click();
  await chat.waitForConnection();
  await chat.sendAndWait('Tell me a short story.');
  await screenshot(chat, `talk-${colorScheme}`);
  await chat.page.goto(`${server.url}admin`);
  await chat.page.getByText(/\d%$/).last().waitFor();
  await chat.page.waitForTimeout(2500);
  await screenshot(chat, `admin-${colorScheme}`);
  await chat.close();
});

it('a tool call, and settings', async () => {
  const chat = await ChatPage.open(browser, server.url, LARGE);
  await chat.waitForConnection();
  await chat.page.getByLabel('Settings', { exact: true }).click();
  await chat.page.getByText('Insert example').click();
  await chat.page.locator('dialog').evaluate((dialog) => {
    dialog.scrollTop = 0;
  });
  await screenshot(chat, 'settings-light');
  await chat.page.getByRole('button', { name: 'Save' }).click();
  await chat.page.locator('dialog').waitFor({ state: 'detached' });
  await chat.send('What is the weather in Paris?');
  await chat.page.getByLabel('Result of get_weather').waitFor();
  await screenshot(chat, 'tool-light');
  await chat.close();
});

it('a lost server, on a small screen', async () => {
  const small = { viewport: { width: 390, height: 760 }, colorScheme: 'dark' as const };
  const chat = await ChatPage.open(browser, server.url, small);
  await chat.waitForConnection();
  await sendExampleMessages(chat);
  await chat.send('Tell me a short story.');
  await chat.waitForCharacters(20);
  await server.kill();
  await chat.banner.getByText('Retry now').waitFor();
  await screenshot(chat, 'lost-dark');
  await chat.close();
  await server.start();
});

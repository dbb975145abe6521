/**
 * Takes pictures of the states of the page: `npm run screenshots`.
 *
 * Each state is pictured on a large screen and on a phone, in both themes, in build/screenshots; those of the
 * documentation are copied to docs/screenshots, where a palette of 128 colors makes them a third of the size.
 */

import { copyFileSync, mkdirSync } from 'node:fs';
import type { BrowserContextOptions } from 'playwright-core';
import { describe, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { EXAMPLE_ANSWER } from './example_answer.js';
import { type Replacement, replaceResponses } from './replaced_response.js';
import { Server } from './server.js';
import { browser, failing, server } from './shared.js';

const ROOT = new URL('../../../', import.meta.url).pathname;
const FOLDER = `${ROOT}build/screenshots/`;
const DOCS_FOLDER = `${ROOT}docs/screenshots/`;
/** Pictures that the documentation shows. */
const DOCUMENTED = new Set([
  'welcome-large-light', 'demonstration-large-dark', 'answer-start-large-light', 'answer-start-phone-dark',
  'conversation-large-light', 'conversation-large-dark', 'search-large-light', 'events-large-dark',
  'developer-large-light', 'sidebar-phone-light', 'refused-phone-light', 'offline-queue-phone-dark',
  'admin-large-light', 'admin-phone-dark',
]);

type Screen = 'large' | 'phone';
const SCREENS: Record<Screen, BrowserContextOptions> = {
  large: { viewport: { width: 1280, height: 800 } },
  phone: { viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true },
};

for (const folder of [FOLDER, DOCS_FOLDER]) mkdirSync(folder, { recursive: true });

describe.each(['large', 'phone'] as const)('on a %s screen', (screen) => {
  const open = (url: string): Promise<ChatPage> => ChatPage.open(url, SCREENS[screen]);

  /** Picture the page in both themes. */
  async function picture(chat: ChatPage, state: string): Promise<void> {
    const { page } = chat;
    if (screen === 'large') await page.mouse.move(640, 20);
    for (const colorScheme of ['dark', 'light'] as const) {
      await page.emulateMedia({ colorScheme });
      const name = `${state}-${screen}-${colorScheme}`;
      await page.screenshot({ path: `${FOLDER}${name}.png`, animations: 'disabled' });
      if (DOCUMENTED.has(name)) copyFileSync(`${FOLDER}${name}.png`, `${DOCS_FOLDER}${name}.png`);
    }
  }

  /** Open the sidebar, which covers the conversation on a phone. */
  async function openSidebar(chat: ChatPage): Promise<void> {
    if (screen === 'phone') await chat.page.getByRole('button', { name: 'Conversations' }).tap();
  }

  async function startConversation(chat: ChatPage): Promise<void> {
    await openSidebar(chat);
    await chat.page.getByText('New conversation', { exact: true }).last().click();
    await chat.page.locator('.welcome').waitFor();
    await chat.waitForConnection();
  }

  async function scrollTo(chat: ChatPage, selector: string): Promise<void> {
    await chat.page.locator(selector).first().evaluate((element) => {
      element.scrollIntoView({ block: 'start' });
    });
  }

  it('welcome, and a demonstration', async () => {
    const chat = await open(server.printedUrl);
    const { page } = chat;
    await chat.waitForConnection();
    await picture(chat, 'welcome');
    await page.getByRole('button', { name: 'Branch a conversation' }).click();
    await chat.responses.first().waitFor();
    await picture(chat, 'demonstration-running');
    await page.emulateMedia({ forcedColors: 'active' });
    await picture(chat, 'demonstration-forced-colors');
    await page.emulateMedia({ forcedColors: 'none' });
    await page.locator('.demonstration:not(.running):visible').waitFor({ timeout: 60_000 });
    await picture(chat, 'demonstration');
    await openSidebar(chat);
    await picture(chat, 'branch');
    await chat.close();
  });

  it('a long answer: being written, its table, code and lists', async () => {
    let replacement: Replacement | null = null;
    const context = await browser.newContext(SCREENS[screen]);
    await replaceResponses(context, () => replacement);
    const chat = await ChatPage.openTab(context, server.url);
    await chat.waitForConnection();
    replacement = { text: EXAMPLE_ANSWER.slice(0, 620), deltaChars: 3 };
    await chat.send('How large is the KV cache of a conversation, and where does it fit?');
    await chat.waitForCharacters(300);
    await picture(chat, 'being-written');
    await chat.waitForResponse();
    replacement = { text: EXAMPLE_ANSWER, deltaChars: 200 };
    await chat.sendAndWait('Say it in full.');
    const shown = ':nth-last-child(2) .body';
    await scrollTo(chat, `.message${shown} > :first-child`);
    await picture(chat, 'answer-start');
    await scrollTo(chat, `.message${shown} > .table`);
    await picture(chat, 'answer-table');
    await scrollTo(chat, `.message${shown} > .code-block`);
    await picture(chat, 'answer-code');
    await scrollTo(chat, `.message${shown} > ol`);
    await picture(chat, 'answer-end');
    await chat.close();
  });

  it('a conversation with versions, its panel, its options, search and import', async () => {
    const chat = await open(server.url);
    const { page } = chat;
    await chat.waitForConnection();
    await chat.sendAndWait('Tell me a short story.');
    await picture(chat, 'story');
    await startConversation(chat);
    await chat.sendAndWait('What is 12 plus 7?');
    await startConversation(chat);
    for (const text of ['My name is Ada and I live in Lisbon.', 'What is 3 plus 4?', 'Count from one to ten.']) {
      await chat.sendAndWait(text);
    }
    const messages = page.locator('.message.user');
    const responses = page.locator('.message.assistant');
    await responses.first().hover();
    await responses.first().getByLabel('Branch from here').click();
    await chat.waitForConnection();
    await chat.sendAndWait('My sister is called Mirabel.');
    await chat.sendAndWait('Where do I live?');
    await chat.sendAndWait('Who is my sister?');
    await messages.last().click(); // which shows its buttons
    await messages.last().getByLabel('Edit and resend').click();
    await picture(chat, 'editing');
    await page.getByLabel('Edit message').fill('What is my sister called?');
    await page.getByLabel('Edit message').press('Enter');
    await page.locator('.versions').first().waitFor();
    await chat.waitForResponse();
    await page.getByLabel('Regenerate').click();
    await page.locator('.message.assistant > .versions').waitFor();
    await chat.waitForResponse();
    await picture(chat, 'versions');
    await page.getByRole('button', { name: 'Live metrics' }).click();
    await page.getByText(/^Turn \d: first token/).waitFor();
    await page.getByText('Active turns').waitFor();
    await page.waitForTimeout(300);
    await picture(chat, 'conversation');
    await page.emulateMedia({ forcedColors: 'active' });
    await picture(chat, 'forced-colors');
    await page.emulateMedia({ forcedColors: 'none', contrast: 'more' });
    await picture(chat, 'contrast');
    await page.emulateMedia({ contrast: 'no-preference' });
    await page.locator('.log > summary').click();
    await page.locator('.log').evaluate((log) => {
      log.scrollIntoView();
    });
    await picture(chat, 'events');
    await page.keyboard.press('Escape');
    if (screen === 'large') await page.getByRole('button', { name: 'Live metrics' }).click();

    await openSidebar(chat);
    await picture(chat, 'sidebar');
    await page.getByRole('button', { name: 'Developer' }).click();
    await picture(chat, 'developer');
    await page.keyboard.press('Escape');
    const options = page.getByRole('button', { name: /^Options of/ });
    await options.first().click();
    await picture(chat, 'options');
    await page.getByRole('menuitem', { name: 'Rename' }).click();
    await picture(chat, 'rename');
    await page.keyboard.press('Escape');
    await page.getByLabel('Search conversations').fill('what');
    await page.locator('.conversations mark').first().waitFor();
    await picture(chat, 'search');
    await page.getByLabel('Search conversations').fill('nowhere');
    await page.getByText('Nothing found.').waitFor();
    await picture(chat, 'search-empty');
    await page.getByLabel('Search conversations').fill('');
    const [chooser] = await Promise.all([
      page.waitForEvent('filechooser'),
      page.getByRole('button', { name: 'Import' }).click(),
    ]);
    await chooser.setFiles({ name: 'notes.json', mimeType: 'application/json', buffer: Buffer.from('{"a": 1}') });
    await page.locator('.notice:not([hidden])').waitFor();
    await picture(chat, 'import-refused');
    await openSidebar(chat);
    await options.first().click();
    await page.getByRole('menuitem', { name: 'Delete' }).click();
    await page.locator('.undo').waitFor();
    await picture(chat, 'deleted');
    await chat.close();
  });

  it('settings, tool calls, another tab, and the server', async () => {
    const chat = await open(server.url);
    const { page } = chat;
    await chat.waitForConnection();
    await openSidebar(chat);
    await page.getByRole('button', { name: 'Settings', exact: true }).click();
    await picture(chat, 'settings');
    await page.getByLabel('Temperature').fill('9');
    await page.getByRole('button', { name: 'Save' }).click();
    await page.locator('#field-temperature-error:not(:empty)').waitFor();
    await picture(chat, 'settings-refused');
    await page.getByLabel('Temperature').fill('');
    await page.getByText('Insert example').click();
    await picture(chat, 'settings-tools');
    await page.getByRole('button', { name: 'Save' }).click();
    await page.locator('dialog').waitFor({ state: 'detached' });
    await chat.send('What is the weather in Paris?');
    await page.getByLabel('Result of get_weather').waitFor();
    await picture(chat, 'tool');
    await page.getByRole('button', { name: 'Submit result' }).click();
    await chat.waitForResponse();
    await picture(chat, 'tool-result');
    const other = await ChatPage.openTab(chat.context, page.url());
    await chat.banner.getByText('another tab').waitFor();
    await picture(chat, 'another-tab');
    await other.page.close();
    await page.goto(`${server.url}admin`);
    await page.getByText(/\d%$/).last().waitFor();
    await page.waitForTimeout(2200); // two polls, of which the rates are the difference
    await picture(chat, 'admin');
    await page.getByRole('button', { name: 'Drain and stop' }).click();
    await picture(chat, 'admin-confirm');
    await chat.close();
  });

  it('offline, interrupted, failed and refused', async () => {
    const chat = await open(failing.url);
    const { page } = chat;
    await openSidebar(chat);
    await chat.limitResponseTokens(40);
    await chat.sendAndWait('Hello?');
    await picture(chat, 'too-short');
    await chat.context.setOffline(true);
    await chat.banner.getByText('this device is offline').waitFor();
    for (const text of ['And what will you do tomorrow?', 'Will you go for a walk with the neighbour’s dog?']) {
      await chat.send(text);
    }
    await chat.input.fill('Something that is not sent yet');
    await picture(chat, 'offline-queue');
    await chat.context.setOffline(false);
    await chat.banner.getByText('Nothing was lost').waitFor();
    await picture(chat, 'reconnected');
    await page.locator('.message.assistant').nth(2).waitFor();
    await chat.waitForResponse();
    await chat.input.fill('many words, '.repeat(200));
    await chat.input.press('Enter');
    await page.locator('.notice:not([hidden])').waitFor();
    await picture(chat, 'refused');
    await chat.input.fill('');
    await openSidebar(chat);
    await chat.limitResponseTokens(300);
    await chat.send('Tell me a story.');
    await chat.waitForCharacters(20);
    failing.signal('SIGHUP');
    await page.getByText('The model is restarting.').waitFor();
    await picture(chat, 'interrupted');
    failing.signal('SIGUSR2');
    await page.getByText('The model is restarting.').waitFor({ state: 'detached' });
    await picture(chat, 'resumed');
    failing.signal('SIGUSR1');
    await page.locator('.missing-response').waitFor();
    await picture(chat, 'failed');
    failing.signal('SIGUSR2');
    await page.locator('.missing-response button').click();
    await chat.waitForCharacters(20);
    await page.getByLabel('Stop (Escape)').click();
    await page.locator('.message.cut').last().waitFor();
    await chat.waitForResponse();
    await picture(chat, 'stopped');
    await chat.close();
  });
});

it('an API key, and a lost server', async () => {
  const guarded = await Server.start([], { CONTINUO_API_KEY: 'sk-pictures' });
  for (const screen of ['large', 'phone'] as const) {
    const chat = await ChatPage.open(guarded.url, SCREENS[screen]);
    await chat.page.getByLabel('API key', { exact: true }).waitFor();
    await chat.page.screenshot({ path: `${FOLDER}key-${screen}-light.png` });
    await chat.close();
  }
  await guarded.stop();
});

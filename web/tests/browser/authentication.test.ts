import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { Server } from './server.js';
import { browser } from './shared.js';

const KEY = 'sk-test-browser';
const USER_KEY = 'sk-test-user';
const folder = mkdtempSync(join(tmpdir(), 'continuo-keys-'));
let server: Server;
beforeAll(async () => {
  const keys = [
    `[[keys]]\nkey = "${USER_KEY}"\ntenant = "acme"`,
    `[[keys]]\nkey = "${KEY}"\ntenant = "operations"\nscopes = ["converse", "read", "admin"]`,
  ];
  writeFileSync(join(folder, 'keys.toml'), keys.join('\n'));
  server = await Server.start(['--api-keys-file', join(folder, 'keys.toml')]);
});
afterAll(async () => {
  await server.stop();
  rmSync(folder, { recursive: true });
});

const KEYS_FILE = join(folder, 'keys.toml');

/** Replace the file of keys at once: the server may read it at any time. */
function writeKeys(keys: string): void {
  writeFileSync(`${KEYS_FILE}.new`, keys);
  renameSync(`${KEYS_FILE}.new`, KEYS_FILE);
}

async function enterKey({ page }: ChatPage, key: string): Promise<void> {
  await page.getByLabel('API key', { exact: true }).fill(key);
  await page.getByLabel('API key', { exact: true }).press('Enter');
}

it('asks for an API key if the server requires one, and stores it in this tab only', async () => {
  const chat = await ChatPage.open(server.url);
  const subprotocols: string[] = [];
  const cdp = await chat.context.newCDPSession(chat.page);
  await cdp.send('Network.enable');
  cdp.on('Network.webSocketWillSendHandshakeRequest', ({ request }) => {
    subprotocols.push(request.headers['Sec-WebSocket-Protocol'] ?? '');
  });
  await chat.page.getByLabel('API key', { exact: true }).waitFor();
  expect(await violations(chat)).toEqual([]);
  await enterKey(chat, 'wrong');
  await chat.page.getByText(/Incorrect API key/i).first().waitFor();
  await enterKey(chat, KEY);
  await chat.waitForConnection();
  expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
  const stored = await chat.page.evaluate(() => JSON.stringify(Object.entries(localStorage)));
  expect(stored).not.toContain(KEY);
  expect(subprotocols).toHaveLength(1); // one short-lived key, issued only for a valid key
  expect(subprotocols[0]).toMatch(/openai-insecure-api-key\.ek_/);
  expect(subprotocols[0]).not.toContain(KEY);
  await chat.page.reload();
  await chat.waitForConnection();
  const otherTab = await ChatPage.openTab(chat.context, server.url);
  await otherTab.page.getByLabel('API key', { exact: true }).waitFor();
  await chat.close();
});

it('keeps messages and the draft until a key is entered', async () => {
  const chat = await ChatPage.open(server.url);
  const key = chat.page.getByLabel('API key', { exact: true });
  await key.press('Escape');
  await chat.banner.getByText('Ask its operator for one.').waitFor();
  await chat.banner.getByRole('button', { name: 'Enter API key' }).waitFor();
  await expect.poll(() => chat.page.locator('.conversations li').count()).toBe(0);
  await chat.send('What is 3 plus 4?');
  await key.press('Escape');
  await chat.page.locator('.unsent').getByText('What is 3 plus 4?').waitFor();
  await chat.input.fill('and typed');
  await chat.page.reload();
  await chat.page.locator('.unsent').getByText('What is 3 plus 4?').waitFor();
  await key.fill(KEY);
  await key.press('Enter');
  await chat.page.locator('.message.assistant').waitFor();
  expect(await chat.waitForResponse()).toContain('7');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['What is 3 plus 4?']);
  await expect.poll(() => chat.input.inputValue()).toBe('and typed');
  await chat.close();
});

it('shows live server metrics on the admin page', async () => {
  const chat = await ChatPage.open(`${server.url}admin`);
  await enterKey(chat, KEY);
  await chat.page.getByText('Leased by sessions').waitFor();
  const chatting = await ChatPage.open(server.url);
  await enterKey(chatting, KEY);
  await chatting.sendAndWait('What is 3 plus 4?');
  await chat.page.locator('td code').first().waitFor();
  const sampled = chat.page.locator('.facts > div', { hasText: 'Tokens sampled' });
  const rateAboveZero = sampled.getByText(/^[1-9]\d* per second$/).waitFor();
  await chatting.sendAndWait('Tell me a short story.');
  await rateAboveZero;
  expect(chat.consoleErrors).toEqual([]);
  await chatting.close();
  await chat.close();
});

it('hides the admin page from users whose key does not permit it', async () => {
  const user = await ChatPage.open(server.url);
  await enterKey(user, USER_KEY);
  await user.sendAndWait('What is 3 plus 4?');
  expect(await user.page.getByRole('link', { name: 'Server' }).isVisible()).toBe(false);
  await user.page.goto(`${server.url}admin`);
  await user.page.getByText(/needs the scope 'admin'/).first().waitFor();
  expect(await user.page.locator('tbody tr[data-id]').count()).toBe(0);
  const operator = await ChatPage.open(server.url);
  await enterKey(operator, KEY);
  await operator.page.getByRole('link', { name: 'Server' }).click();
  await operator.page.getByText('acme').waitFor();
  await operator.close();
  await user.close();
});

it('forgets the stored conversations in all tabs when its key is revoked, if the user says so', async () => {
  const keys = readFileSync(KEYS_FILE, 'utf8');
  writeKeys(`${keys}\n[[keys]]\nkey = "sk-test-former"\ntenant = "former"\n`);
  const chat = await ChatPage.open(server.url);
  await expect.poll(async () => (await fetch(`${server.url}v1/models`, { headers: { Authorization: 'Bearer sk-test-former' } })).status).toBe(200);
  await enterKey(chat, 'sk-test-former');
  await chat.waitForConnection();
  await chat.input.fill('typed and not sent');
  await chat.page.evaluate(() => {
    const content = [{ type: 'input_text', text: 'said in confidence' }];
    const items = [{ id: 'item_u', type: 'message', role: 'user', status: 'completed', content }];
    const summary = { id: 'kept', title: 'Kept', parent: null, updated: Date.now() };
    const stored = { ...summary, position: null, saved: { items, turns: [] }, settings: {}, model: null, metrics: [], draft: '', pending: [] };
    localStorage.setItem('continuo.talk.kept', JSON.stringify(stored));
    localStorage.setItem('continuo.index', JSON.stringify({ kept: summary }));
  });
  const otherTab = await ChatPage.openTab(chat.context, `${server.url}#kept`);
  await enterKey(otherTab, 'sk-test-former');
  await otherTab.waitForConnection();
  const stored = (): Promise<string> => chat.page.evaluate(() => JSON.stringify(Object.entries(localStorage)));
  const SECRETS = /in confidence|not sent/;
  writeKeys(keys);

  const forget = chat.page.getByRole('button', { name: 'Forget conversations' });
  await forget.waitFor();
  expect(await violations(chat)).toEqual([]);
  await chat.page.getByText('keeps one conversation').waitFor();
  await forget.click();
  await chat.page.getByRole('button', { name: 'Cancel' }).last().click();
  expect(await otherTab.userMessages.allInnerTexts()).toEqual(['said in confidence']);
  expect(await stored()).toContain('in confidence');
  await forget.click();
  await chat.page.getByRole('button', { name: 'Forget', exact: true }).click();
  for (const tab of [chat, otherTab]) {
    await expect.poll(() => tab.page.locator('.message').count()).toBe(0);
    await expect.poll(() => tab.page.locator('.conversations li').count()).toBe(0);
    await tab.page.evaluate(() => dispatchEvent(new Event('pagehide'))); // the page stores what is open
  }
  await expect.poll(stored).not.toMatch(SECRETS);
  await chat.page.reload();
  await chat.page.getByLabel('API key', { exact: true }).waitFor();
  expect(await forget.count()).toBe(0);
  expect(await stored()).not.toMatch(SECRETS);
  await chat.close();
});

it('refuses connections from pages of another origin', async () => {
  const otherOrigin = createServer((_, response) => {
    response.setHeader('Content-Type', 'text/html').end('<!doctype html><title>foreign</title>');
  });
  await new Promise<void>((resolve) => otherOrigin.listen(0, '127.0.0.1', resolve));
  const { port } = otherOrigin.address() as AddressInfo;
  const context = await browser.newContext();
  const page = await context.newPage();
  const connectFrom = async (origin: string): Promise<string> => {
    await page.goto(origin);
    return page.evaluate(
      ([url, key]) =>
        new Promise<string>((resolve) => {
          const socket = new WebSocket(url ?? '', ['realtime', `openai-insecure-api-key.${key}`]);
          socket.onmessage = () => {
            resolve('accepted');
          };
          socket.onclose = () => {
            resolve('refused');
          };
        }),
      [`ws://127.0.0.1:${server.port}/v1/realtime`, KEY],
    );
  };
  expect(await connectFrom(`http://foreign.test:${port}/`)).toBe('refused');
  expect(await connectFrom(`http://127.0.0.1:${port}/`)).toBe('accepted');
  await context.close();
  otherOrigin.close();
});

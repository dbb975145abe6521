import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

const KEY = 'sk-test-browser';
let server: Server;
let browser: Browser;
beforeAll(async () => {
  const rules = 'MAP foreign.test 127.0.0.1';
  [server, browser] = await Promise.all([
    Server.start([], { CONTINUO_API_KEY: KEY }),
    launch([`--host-resolver-rules=${rules}`]),
  ]);
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});

it('asks for the key the server wants, and keeps it to this tab', async () => {
  const visit = await Visit.begin(browser, server.url);
  const shown: string[] = [];
  const cdp = await visit.context.newCDPSession(visit.page);
  await cdp.send('Network.enable');
  cdp.on('Network.webSocketWillSendHandshakeRequest', ({ request }) => {
    shown.push(request.headers['Sec-WebSocket-Protocol'] ?? '');
  });
  const field = visit.page.getByLabel('API key');
  await field.fill('wrong');
  await field.press('Enter');
  await visit.page.getByText('not valid here').first().waitFor();
  await visit.page.getByLabel('API key').fill(KEY);
  await visit.page.getByLabel('API key').press('Enter');
  await visit.connected();
  expect(await visit.say('What is 3 plus 4?')).toContain('7');
  const stored = await visit.page.evaluate(() => JSON.stringify(Object.entries(localStorage)));
  expect(stored).not.toContain(KEY);
  expect(shown).toHaveLength(1); // a short-lived one, and only for a key that is good
  expect(shown[0]).toMatch(/openai-insecure-api-key\.ek_/);
  expect(shown[0]).not.toContain(KEY);
  await visit.page.reload();
  await visit.connected();
  const other = await Visit.tab(visit.context, server.url);
  await other.page.getByLabel('API key').waitFor();
  await visit.close();
});

it('keeps what is said before there is a key', async () => {
  const visit = await Visit.begin(browser, server.url);
  const key = visit.page.getByLabel('API key');
  await key.press('Escape');
  await visit.banner.getByText('Whoever runs it can give you one.').waitFor();
  await visit.banner.getByRole('button', { name: 'Enter a key' }).waitFor();
  await expect.poll(() => visit.page.locator('.talks li').count()).toBe(0);
  await visit.send('What is 3 plus 4?');
  await key.press('Escape');
  await visit.page.locator('.unsent').getByText('What is 3 plus 4?').waitFor();
  await visit.field.fill('and typed');
  await visit.page.reload();
  await visit.page.locator('.unsent').getByText('What is 3 plus 4?').waitFor();
  await key.fill(KEY);
  await key.press('Enter');
  await visit.page.locator('.message.assistant').waitFor();
  expect(await visit.finished()).toContain('7');
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['What is 3 plus 4?']);
  await expect.poll(() => visit.field.inputValue()).toBe('and typed');
  await visit.close();
});

it('shows the server to its operator', async () => {
  const visit = await Visit.begin(browser, `${server.url}admin`);
  await visit.page.getByLabel('API key').fill(KEY);
  await visit.page.getByLabel('API key').press('Enter');
  await visit.page.getByText('Held by conversations').waitFor();
  const talking = await Visit.begin(browser, server.url);
  await talking.page.getByLabel('API key').fill(KEY);
  await talking.page.getByLabel('API key').press('Enter');
  await talking.say('What is 3 plus 4?');
  await visit.page.locator('td code').first().waitFor();
  const drawn = visit.page.locator('.facts > div', { hasText: 'Tokens drawn' });
  const working = drawn.getByText(/^[1-9]\d* a second$/).waitFor();
  await talking.say('Tell me a short story.');
  await working;
  await expect.poll(() => visit.page.locator('main button, main input, main form').count()).toBe(0);
  expect(visit.complaints).toEqual([]);
  await talking.close();
  await visit.close();
});

it('is no use to pages of another origin', async () => {
  const foreign = createServer((_, answer) => {
    answer.setHeader('Content-Type', 'text/html').end('<!doctype html><title>foreign</title>');
  });
  await new Promise<void>((resolve) => foreign.listen(0, '127.0.0.1', resolve));
  const { port } = foreign.address() as AddressInfo;
  const context = await browser.newContext();
  const page = await context.newPage();
  const attempt = async (origin: string): Promise<string> => {
    await page.goto(origin);
    return page.evaluate(
      ([url, key]) =>
        new Promise<string>((resolve) => {
          const socket = new WebSocket(url ?? '', ['realtime', `openai-insecure-api-key.${key}`]);
          socket.onmessage = () => {
            resolve('let in');
          };
          socket.onclose = () => {
            resolve('refused');
          };
        }),
      [`ws://127.0.0.1:${server.port}/v1/realtime`, KEY],
    );
  };
  expect(await attempt(`http://foreign.test:${port}/`)).toBe('refused');
  expect(await attempt(`http://127.0.0.1:${port}/`)).toBe('let in');
  await context.close();
  foreign.close();
});

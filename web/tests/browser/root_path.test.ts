import { afterAll, beforeAll, expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { Server } from './server.js';

let server: Server;
beforeAll(async () => {
  server = await Server.start(['--root-path', '/llm']);
});
afterAll(async () => {
  await server.stop();
});

it('loads and converses under the path prefix of a proxy', async () => {
  const chat = await ChatPage.open(`${server.url}llm`);
  await chat.waitForConnection();
  expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
  expect(new URL(chat.page.url()).pathname).toBe('/llm/');
  expect(chat.consoleErrors).toEqual([]);
  await chat.page.goto(`${server.url}llm/admin`);
  await expect.poll(() => chat.page.locator('body').innerText()).toContain('2,048 tokens');
  await chat.close();
});

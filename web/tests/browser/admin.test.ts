import { afterAll, beforeAll, expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { Server } from './server.js';

let server: Server;
beforeAll(async () => {
  server = await Server.start();
});
afterAll(async () => {
  await server.stop();
});

it('shows throughput and latency of the last minute', async () => {
  const chat = await ChatPage.open(server.url);
  await chat.waitForConnection();
  const admin = await ChatPage.openTab(chat.context, `${server.url}admin`);
  const valueOf = (name: string) =>
    admin.page.locator('.facts > div', { hasText: name }).locator('dd').innerText();
  await admin.page.getByText('First token: median, p95').waitFor();
  expect(await valueOf('First token')).toBe('–, –');
  const rates = /^(–|[\d,]+ per second)$/; // unknown before the second poll
  for (const name of ['Tokens sampled', 'Tokens computed']) expect(await valueOf(name)).toMatch(rates);
  await expect.poll(() => valueOf('Tokens sampled')).toMatch(/^[\d,]+ per second$/);
  await chat.sendAndWait('What is 3 plus 4?');
  await expect.poll(() => valueOf('First token'), { timeout: 10_000 }).toMatch(/^[\d.]+ m?s, [\d.]+ m?s$/);
  await expect.poll(() => valueOf('Responses')).toMatch(/^[\d.]*[1-9][\d.]* per second$/);
  expect(await valueOf('Refused')).toBe('0 per second');
  expect(admin.consoleErrors).toEqual([]);
  await chat.close();
});

it('is reachable from the page, and evicts a session, which then continues', async () => {
  const chat = await ChatPage.open(server.url);
  expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
  await chat.page.getByRole('link', { name: 'Server' }).waitFor();
  const admin = await ChatPage.openTab(chat.context, `${server.url}admin`);
  const id = await chat.page.evaluate(() => {
    dispatchEvent(new Event('pagehide')); // the page stores the conversation when it is closed
    const stored = localStorage.getItem(`continuo.talk.${location.hash.slice(1)}`) ?? '';
    return (JSON.parse(stored) as { position: { sessionId: string } }).position.sessionId;
  });
  const row = admin.page.locator('tbody tr', { hasText: id });
  await row.getByText('idle', { exact: true }).waitFor();
  await expect.poll(() => row.locator('td').nth(3).innerText()).toMatch(/^\d+ s$/);
  const opacity = await row.locator('.controls').evaluate((cell) => getComputedStyle(cell).opacity);
  expect(opacity).toBe('1');
  const reconnected = chat.banner.getByText('Reconnected. Nothing was lost.').waitFor();
  await row.getByRole('button', { name: 'Evict' }).click();
  await reconnected;
  expect(await chat.sendAndWait('What is 2 plus 2?')).toContain('4');
  expect(await chat.userMessages.count()).toBe(2);
  expect(admin.consoleErrors).toEqual([]);
  await chat.close();
});

it('ends a session once that is confirmed', async () => {
  const chat = await ChatPage.open(server.url);
  await chat.sendAndWait('What is 3 plus 4?');
  const admin = await ChatPage.openTab(chat.context, `${server.url}admin`);
  const rows = admin.page.locator('tbody tr[data-id]');
  await rows.first().waitFor();
  const id = await rows.first().getAttribute('data-id');
  const row = admin.page.locator(`tr[data-id="${id}"]`);
  await row.getByRole('button', { name: 'End' }).click();
  await admin.page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
  await admin.page.getByRole('dialog').waitFor({ state: 'detached' });
  expect(await row.count()).toBe(1);
  await row.getByRole('button', { name: 'End' }).click();
  await admin.page.getByRole('dialog').getByRole('button', { name: 'End session' }).click();
  await row.waitFor({ state: 'detached' });
  await chat.banner.getByText(/deleted/).waitFor();
  await admin.page.getByText(`session ${id} was deleted by an operator`).waitFor();
  await chat.close();
});

it('drains the gateway', async () => {
  const admin = await ChatPage.open(`${server.url}admin`);
  await admin.page.getByText('Leased by sessions').waitFor();
  await admin.page.getByRole('button', { name: 'Drain and stop' }).click();
  await admin.page.getByRole('dialog').getByRole('button', { name: 'Drain and stop' }).click();
  await admin.page.getByText('Showing the last values: the server cannot be reached').first().waitFor();
  await admin.close();
});

import { expect, it, onTestFinished } from 'vitest';
import { ChatPage } from './chat_page.js';
import { Server } from './server.js';

it('rehydrates the conversation after its session has expired', async () => {
  const server = await Server.start(['--resume-window-s', '1']);
  onTestFinished(() => server.stop());
  const chat = await ChatPage.open(server.url);
  const response = await chat.sendAndWait('What is 3 plus 4?');
  const id = chat.wire.receivedOf('session.created')[0]?.session.id ?? '';
  await chat.context.setOffline(true);
  await chat.banner.getByText('offline').waitFor();
  await chat.input.fill('What is 2 plus 2?');
  const sessionStatus = async (): Promise<number> =>
    (await fetch(`${server.url}v1/realtime/sessions/${id}`)).status;
  await expect.poll(sessionStatus, { timeout: 30_000 }).toBe(404);
  await chat.context.setOffline(false);
  await chat.banner.getByText('restored from this browser').waitFor();
  await expect.poll(() => chat.input.inputValue()).toBe('What is 2 plus 2?');
  await chat.input.press('Enter');
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  expect(await chat.waitForResponse()).toContain('4');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['What is 3 plus 4?', 'What is 2 plus 2?']);
  await expect.poll(async () => (await chat.responses.first().innerText()).trim()).toBe(response);
  expect(chat.wire.sentOf('response.create')).toHaveLength(2);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('reports a lost server, and keeps messages and the draft until it is back', async () => {
  const server = await Server.start();
  onTestFinished(() => server.stop());
  const chat = await ChatPage.open(server.url);
  const admin = await ChatPage.open(`${server.url}admin`);
  await chat.sendAndWait('What is 3 plus 4?');
  await admin.page.getByText('Leased by sessions').waitFor();
  await server.kill();
  await chat.banner.getByText(/^Not connected: .+\. Retrying/).waitFor();
  await admin.page.getByText('Showing the last values: the server cannot be reached').first().waitFor();
  await chat.send('What is 2 plus 2?');
  await chat.page.locator('.unsent').getByText('What is 2 plus 2?').waitFor();
  await chat.input.fill('and typed, not sent');
  await server.start();
  const retryButton = chat.banner.getByRole('button', { name: 'Retry now' });
  // The client may have reconnected by itself meanwhile.
  if (await retryButton.isVisible()) await retryButton.click({ timeout: 2000 }).catch(() => undefined);
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  expect(await chat.waitForResponse()).toContain('4');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['What is 3 plus 4?', 'What is 2 plus 2?']);
  await expect.poll(() => chat.input.inputValue()).toBe('and typed, not sent');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
  await admin.close();
});

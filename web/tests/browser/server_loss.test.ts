import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

let browser: Browser;
beforeAll(async () => {
  browser = await launch();
});
afterAll(async () => {
  await browser.close();
});

it('tells a server the conversation again when its session has expired', async () => {
  const server = await Server.start(['--resume-window-s', '1']);
  onTestFinished(() => server.stop());
  const visit = await Visit.begin(browser, server.url);
  const answer = await visit.say('What is 3 plus 4?');
  const id = visit.wire.heard('session.created')[0]?.session.id ?? '';
  await visit.context.setOffline(true);
  await visit.banner.getByText('offline').waitFor();
  await visit.field.fill('What is 2 plus 2?');
  const there = async (): Promise<number> =>
    (await fetch(`${server.url}v1/realtime/sessions/${id}`)).status;
  await expect.poll(there, { timeout: 30_000 }).toBe(404);
  await visit.context.setOffline(false);
  await visit.banner.getByText('was told it again').waitFor();
  await expect.poll(() => visit.field.inputValue()).toBe('What is 2 plus 2?');
  await visit.field.press('Enter');
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  expect(await visit.finished()).toContain('4');
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['What is 3 plus 4?', 'What is 2 plus 2?']);
  await expect.poll(async () => (await visit.answers.first().innerText()).trim()).toBe(answer);
  expect(visit.wire.asked('response.create')).toHaveLength(2);
  expect(visit.complaints).toEqual([]);
  await visit.close();
});

it('says that the server is not there, and keeps what is written until it is', async () => {
  const server = await Server.start();
  onTestFinished(() => server.stop());
  const visit = await Visit.begin(browser, server.url);
  const admin = await Visit.begin(browser, `${server.url}admin`);
  await visit.say('What is 3 plus 4?');
  await admin.page.getByText('Held by conversations').waitFor();
  await server.kill();
  await visit.banner.getByText(/^Not connected: .+\. Trying again/).waitFor();
  await admin.page.getByText('These are the last figures: the server cannot be reached').first().waitFor();
  await visit.send('What is 2 plus 2?');
  await visit.page.locator('.unsent').getByText('What is 2 plus 2?').waitFor();
  await visit.field.fill('and typed, not sent');
  await server.start();
  const now = visit.banner.getByRole('button', { name: 'Try now' });
  if (await now.isVisible()) await now.click({ timeout: 2000 }).catch(() => undefined); // or it has
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  expect(await visit.finished()).toContain('4');
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['What is 3 plus 4?', 'What is 2 plus 2?']);
  await expect.poll(() => visit.field.inputValue()).toBe('and typed, not sent');
  expect(visit.complaints).toEqual([]);
  await visit.close();
  await admin.close();
});

import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { Server } from './server.js';

let server: Server;
let chat: ChatPage;
/** The response to STORY without interruptions. */
let story: string;
beforeAll(async () => {
  server = await Server.start();
  chat = await ChatPage.open(server.url);
  story = await chat.sendAndWait(STORY);
  await chat.close();
});
afterAll(async () => {
  await server.stop();
});
beforeEach(async () => {
  chat = await ChatPage.open(server.url);
  await chat.waitForConnection();
});
afterEach(async () => {
  await chat.close();
});

const STORY = 'Tell me a short story.';

/** Expect an exact resume: one response, requested once, in the same session. */
async function expectResumed(): Promise<void> {
  expect(await chat.waitForResponse()).toBe(story);
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual([STORY]);
  await expect.poll(() => chat.responses.count()).toBe(1);
  const { wire } = chat;
  expect(wire.sentOf('response.create')).toHaveLength(1);
  expect(new Set(wire.receivedOf('response.created').map(({ response }) => response.id)).size).toBe(1);
  expect(wire.receivedOf('session.created')).toHaveLength(1);
  expect(wire.resumeOutcomes.length).toBeGreaterThan(0);
  expect(new Set(wire.resumeOutcomes)).toEqual(new Set(['exact']));
  expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
  expect(chat.consoleErrors).toEqual([]);
}

it('resumes after a reload during a response', async () => {
  await chat.send(STORY);
  await chat.waitForCharacters(20);
  await chat.page.reload();
  await expectResumed();
  await chat.openPanel();
  const [latency, tokens] = [chat.page.locator('.chart').first(), chat.page.locator('.chart').last()];
  await tokens.getByText(/^Turn 2: /).waitFor(); // including the turn that began before the reload
  await latency.getByText(/^Turn 2: first token/).waitFor();
  await chat.page.locator('.message.assistant .usage').first().waitFor({ state: 'attached' });
  await expect
    .poll(() => chat.page.locator('.message.assistant .usage').first().getAttribute('title'))
    .toMatch(/^\d+ tokens\. Read: \d+ prefilled, \d+ reused\.$/);
});

it('resumes after the connection was dropped during a response', async () => {
  await chat.send(STORY);
  await chat.waitForCharacters(20);
  await chat.dropConnection();
  await chat.banner.getByText('Nothing was lost.').waitFor();
  await expectResumed();
});

it('resumes after a time offline, and keeps the draft', async () => {
  await chat.send(STORY);
  await chat.waitForCharacters(20);
  await chat.context.setOffline(true);
  await chat.banner.getByText('this device is offline').waitFor();
  await chat.input.fill('What is 2 plus 2?');
  await chat.context.setOffline(false);
  expect(await chat.waitForResponse()).toBe(story);
  await expect.poll(() => chat.input.inputValue()).toBe('What is 2 plus 2?');
  await chat.input.press('Enter');
  await chat.page.locator('.message').nth(3).waitFor();
  expect(await chat.waitForResponse()).toContain('4');
});

it('sends queued messages once online, also after a reload', async () => {
  await chat.sendAndWait('What is 3 plus 4?');
  await chat.page.route('**/v1/**', (route) => route.abort());
  await chat.dropConnection();
  await chat.send('What is 2 plus 2?');
  await chat.page.locator('.unsent').waitFor();
  await chat.page.reload();
  await chat.page.locator('.unsent').waitFor();
  await chat.page.unroute('**/v1/**');
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  expect(await chat.waitForResponse()).toContain('4');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['What is 3 plus 4?', 'What is 2 plus 2?']);
});

it('resumes after the server was killed and restarted during a response', async () => {
  await chat.send(STORY);
  await chat.waitForCharacters(20);
  await server.kill();
  await chat.banner.getByText('Not connected').waitFor();
  await chat.input.fill('still typing');
  await server.start();
  expect(await chat.waitForResponse()).toBe(story);
  await expect.poll(() => chat.input.inputValue()).toBe('still typing');
  await chat.input.fill('');
  await expectResumed();
});

it('resumes after the engine was killed during a response', async () => {
  await chat.send(STORY);
  await chat.waitForCharacters(20);
  server.killEngine();
  expect(await chat.waitForResponse()).toBe(story);
  expect(chat.wire.sentOf('response.create')).toHaveLength(1);
  expect(chat.wire.receivedOf('session.created')).toHaveLength(1);
  const admin = await ChatPage.openTab(chat.context, `${server.url}admin`);
  await admin.page.locator('.warnings .warning, .warnings .error').first().waitFor();
  expect(chat.consoleErrors).toEqual([]);
});

it('is open in one tab at a time, and can be taken over again', async () => {
  await chat.sendAndWait('What is 3 plus 4?');
  await expect.poll(() => chat.page.evaluate(() => Object.keys(localStorage).length)).toBeGreaterThan(1);
  const otherTab = await ChatPage.openTab(chat.context, chat.page.url());
  await chat.banner.getByText('another tab').waitFor();
  await expect.poll(() => otherTab.responses.count()).toBe(1);
  expect(await otherTab.sendAndWait('What is 2 plus 2?')).toContain('4');
  await chat.input.fill('written here meanwhile');
  await chat.page.getByRole('button', { name: 'Continue here' }).click();
  await otherTab.banner.getByText('another tab').waitFor();
  await expect.poll(() => chat.responses.count()).toBe(2);
  await expect.poll(() => chat.input.inputValue()).toBe('written here meanwhile');
  await chat.input.fill('');
  expect(await chat.sendAndWait('What is 1 plus 1?')).toContain('2');
  const question = otherTab.page.locator('.message.user').first();
  await question.hover();
  await question.getByLabel('Edit and resend').click();
  await otherTab.page.getByLabel('Edit message').fill('What is 2 plus 6?');
  await otherTab.page.getByLabel('Edit message').press('Enter');
  await chat.banner.getByText('another tab').waitFor();
  await expect.poll(() => otherTab.userMessages.allInnerTexts()).toEqual(['What is 2 plus 6?']);
  expect(await otherTab.waitForResponse()).toContain('8');
});

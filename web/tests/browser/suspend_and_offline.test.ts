import { afterAll, beforeAll, expect, it } from 'vitest';
import { ChatPage } from './chat_page.js';
import { failing } from './shared.js';
import { TcpProxy } from './tcp_proxy.js';

let proxy: TcpProxy;
beforeAll(async () => {
  proxy = await TcpProxy.listen(() => [Number(new URL(failing.url).port)]);
});
afterAll(() => {
  proxy.close();
});

it.each([
  ['a suspend', false],
  ['a suspend during which the connection silently died', true],
])('resumes after %s', async (_, silent) => {
  const chat = await ChatPage.open(proxy.url, { responseTokens: 150 });
  await chat.send('Hello?');
  await chat.waitForCharacters(5);
  await chat.input.fill('typed before');
  const cdp = await chat.context.newCDPSession(chat.page);
  await cdp.send('Page.setWebLifecycleState', { state: 'frozen' });
  if (silent) proxy.stall();
  await new Promise((resolve) => setTimeout(resolve, 1000)); // the page is frozen for this long
  await cdp.send('Page.setWebLifecycleState', { state: 'active' });
  // Browsers fire `resume` when a page wakes up, but CDP does not.
  await chat.page.evaluate(() => document.dispatchEvent(new Event('resume')));
  await chat.waitForResponse();
  const [done] = chat.wire.receivedOf('response.done');
  expect(done?.response.output).toMatchObject([{ content: [{ text: (await chat.storedTexts())[1] }] }]);
  expect(done?.response.usage?.output_tokens).toBe(150);
  await expect.poll(() => chat.input.inputValue()).toBe('typed before');
  expect(chat.wire.sentOf('response.create')).toHaveLength(1);
  expect(chat.wire.receivedOf('session.created')).toHaveLength(1);
  expect(chat.wire.resumeOutcomes.filter((how) => how !== 'exact')).toEqual([]);
  if (silent) expect(chat.wire.resumeOutcomes).toContain('exact');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it.each([
  ['unchanged', false],
  ['unless it was taken back and changed', true],
])('sends a message written offline during a response, %s', async (_, changed) => {
  const chat = await ChatPage.open(proxy.url, { responseTokens: 600 });
  await chat.send('Hello?');
  await chat.waitForCharacters(5);
  await chat.context.setOffline(true);
  await chat.banner.getByText('this device is offline').waitFor();
  await chat.send('And you?');
  const queued = chat.page.locator('.message.queued');
  await queued.getByText('And you?').waitFor();
  await expect.poll(() => chat.input.inputValue()).toBe('');
  if (changed) {
    await queued.getByRole('button', { name: 'Take back' }).click();
    await expect.poll(() => queued.count()).toBe(0);
    await expect.poll(() => chat.input.inputValue()).toBe('And you?');
    await chat.input.fill('And they?');
  }
  await chat.context.setOffline(false);
  if (changed) {
    await chat.waitForConnection();
    await chat.waitForCharacters(30);
    await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?']);
    await expect.poll(() => chat.input.inputValue()).toBe('And they?');
    await chat.input.press('Enter');
  }
  await chat.page.locator('.message.cut').getByText('stopped').waitFor();
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  await chat.stopAtCharacters(5);
  await chat.waitForResponse();
  const second = changed ? 'And they?' : 'And you?';
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?', second]);
  await expect.poll(() => chat.input.inputValue()).toBe('');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

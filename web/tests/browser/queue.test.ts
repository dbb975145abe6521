/** Messages that are queued without a connection, in one tab and in two, and messages that the server refuses. */

import { expect, it } from 'vitest';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { browser, failing } from './shared.js';

it('sends what was queued offline once, in order, after a reload too, and lets it be taken back', async () => {
  const chat = await ChatPage.open(failing.url, { responseTokens: 12 });
  const { page } = chat;
  const queued = page.locator('.message.queued');
  const texts = (): Promise<string[]> => queued.locator('.body').allInnerTexts();
  await chat.sendAndWait('Hello?');
  await chat.context.setOffline(true);
  await chat.banner.getByText('this device is offline').waitFor();
  for (const text of ['one', 'two', 'three', 'four']) await chat.send(text);
  await expect.poll(texts).toEqual(['one', 'two', 'three', 'four']);
  await queued.first().getByText('Queued: sent once connected').waitFor();
  expect(await violations(chat)).toEqual([]);

  // Taken back with the keyboard: the last one by the arrow key, another by its button.
  await chat.input.press('ArrowUp');
  await expect.poll(texts).toEqual(['one', 'two', 'three']);
  await expect.poll(() => chat.input.inputValue()).toBe('four');
  await chat.input.fill('');
  await queued.nth(1).getByRole('button', { name: 'Take back' }).press('Enter');
  await expect.poll(texts).toEqual(['one', 'three']);
  await expect.poll(() => chat.input.inputValue()).toBe('two');

  await chat.context.setOffline(false);
  await expect.poll(texts).toEqual([]);
  await expect.poll(() => chat.responses.count()).toBe(3);
  await chat.waitForResponse();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?', 'one', 'three']);
  await expect.poll(() => chat.input.inputValue()).toBe('two');
  const roles = chat.wire.receivedOf('conversation.item.added').map(({ item }) => item.type === 'message' && item.role);
  expect(roles).toEqual(['user', 'assistant', 'user', 'assistant', 'user', 'assistant']);

  // Queued messages survive a reload.
  await chat.input.fill('');
  await chat.context.setOffline(true);
  await chat.banner.getByText('this device is offline').waitFor();
  await chat.send('five');
  await expect.poll(texts).toEqual(['five']);
  const kept = await page.evaluate(() => JSON.stringify(Object.entries(localStorage)));
  expect(kept).toContain('five');
  await chat.context.setOffline(false);
  await page.reload();
  await expect.poll(() => chat.responses.count()).toBe(4);
  await chat.waitForResponse();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?', 'one', 'three', 'five']);
  expect(chat.wire.receivedOf('error').filter(({ error }) => error.code !== 'item_retrieve_invalid_item_id')).toEqual([]);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('sends once what two tabs of a conversation queued offline, though one of them is closed', async () => {
  const first = await ChatPage.open(failing.url, { responseTokens: 12 });
  const { context } = first;
  const queued = (tab: ChatPage): Promise<string[]> => tab.page.locator('.message.queued .body').allInnerTexts();
  const isTakenOver = (tab: ChatPage): Promise<boolean> => tab.banner.getByText('another tab').isVisible();
  const goOffline = async (tab: ChatPage): Promise<void> => {
    await context.setOffline(true);
    await tab.banner.getByText('this device is offline').waitFor();
  };
  await first.sendAndWait('Hello?');
  const second = await ChatPage.openTab(context, first.page.url());
  await first.banner.getByText('another tab').waitFor();
  await expect.poll(() => second.responses.count()).toBe(1);

  // Each tab shows what the other one queues or takes back.
  await goOffline(second);
  for (const text of ['one', 'withdrawn']) await second.send(text);
  await first.page.getByRole('button', { name: 'Continue here' }).click();
  await expect.poll(() => queued(first)).toEqual(['one', 'withdrawn']);
  await first.page.getByRole('button', { name: 'Take back' }).last().click();
  await expect.poll(() => queued(second)).toEqual(['one']);
  await expect.poll(() => first.input.inputValue()).toBe('withdrawn');
  await second.send('two');
  await expect.poll(() => queued(first)).toEqual(['one', 'two']);
  await first.input.fill('three');
  await first.input.press('Enter');
  await expect.poll(() => queued(second)).toEqual(['one', 'two', 'three']);

  // Both reconnect, and the later one takes the session over: it sends what the other one has not.
  await context.setOffline(false);
  await expect.poll(async () => [await queued(first), await queued(second)]).toEqual([[], []]);
  await expect.poll(async () => (await isTakenOver(first)) !== (await isTakenOver(second))).toBe(true);
  const [owner, other] = (await isTakenOver(first)) ? [second, first] : [first, second];
  await expect.poll(() => owner.userMessages.allInnerTexts()).toEqual(['Hello?', 'one', 'two', 'three']);
  await expect.poll(() => owner.responses.count()).toBe(4);
  await owner.waitForResponse();
  expect(await owner.responses.count()).toBe(4);

  // A tab that is closed before it could send leaves its message to the other one.
  await goOffline(owner);
  await owner.send('four');
  await expect.poll(() => queued(owner)).toEqual(['four']);
  await owner.page.close();
  await context.setOffline(false);
  await other.page.getByRole('button', { name: 'Continue here' }).click();
  await expect.poll(() => other.userMessages.allInnerTexts()).toEqual(['Hello?', 'one', 'two', 'three', 'four']);
  await expect.poll(() => other.responses.count()).toBe(5);
  await other.waitForResponse();
  expect(await other.responses.count()).toBe(5);
  const id = other.wire.receivedOf('session.updated').at(-1)?.session.id ?? '';
  const status = (await (await fetch(`${failing.url}v1/realtime/sessions/${id}`)).json()) as { items: number };
  expect(status.items).toBe(10);
  expect([...first.consoleErrors, ...second.consoleErrors]).toEqual([]);
  await context.close();
});

it('keeps a first message that was sent but not acknowledged when the page is closed', async () => {
  const context = await browser.newContext();
  /** Replies that the page does not receive. */
  let held: RegExp | null = /^/;
  const deliveries: (() => void)[] = [];
  await context.routeWebSocket(/\/v1\/realtime/, (page) => {
    page.connectToServer().onMessage((message) => {
      const deliver = (): void => {
        page.send(message);
      };
      if (held?.test(String(message))) deliveries.push(deliver);
      else deliver();
    });
  });
  const chat = await ChatPage.openTab(context, failing.url);
  await chat.send('first'); // queued, because the connection is not open yet
  await chat.page.locator('.message.queued').waitFor();
  await expect.poll(() => deliveries.length).toBeGreaterThan(0);
  held = /"type":"(conversation\.item|response)\./;
  for (const deliver of deliveries.splice(0)) deliver();
  await chat.page.locator('.unsent', { hasText: 'Sending' }).waitFor();
  const storedPending = () =>
    chat.page.evaluate(() => {
      dispatchEvent(new Event('pagehide'));
      const key = Object.keys(localStorage).find((one) => one.startsWith('continuo.talk.')) ?? '';
      return (JSON.parse(localStorage.getItem(key) ?? 'null') as { pending: unknown } | null)?.pending;
    });
  await expect.poll(storedPending, { timeout: 10_000 }).toEqual([]); // the message alone is not acknowledged
  await chat.page.close();
  held = null;
  const again = await ChatPage.openTab(context, failing.url);
  await again.page.locator('.conversations a').click();
  await again.stopAtCharacters(5);
  await again.waitForResponse();
  await again.page.reload();
  await expect.poll(() => again.userMessages.allInnerTexts()).toEqual(['first']);
  await expect.poll(() => again.responses.count()).toBe(1);
  expect(again.consoleErrors).toEqual([]);
  await context.close();
});

it('keeps no trace of a refused message, but for its text in the composer', async () => {
  const chat = await ChatPage.open(failing.url, { responseTokens: 5 });
  const { page } = chat;
  const notice = page.getByRole('alert');
  const long = 'many words, '.repeat(200).trim(); // 2,399 tokens
  const tooLong = /^Your message is too long: 2,[34]\d\d tokens; this model takes 2,000\.$/;

  const isUntouched = async (): Promise<void> => {
    await notice.getByText(tooLong).waitFor();
    await expect.poll(() => chat.input.inputValue()).toBe(long);
    await expect.poll(() => page.locator('.pending, .unsent, .message.open').count()).toBe(0);
    await notice.evaluate((element) => (element.textContent = ''));
  };
  await chat.input.fill(long);
  await chat.input.press('Enter');
  await isUntouched();
  await page.locator('.welcome').waitFor();
  await expect.poll(() => page.locator('.message').count()).toBe(0);
  await expect.poll(() => page.locator('.conversations a').count()).toBe(0);
  expect(await page.locator('h1').innerText()).toBe('New conversation');
  await chat.openPanel();
  await expect.poll(() => page.locator('.chart').first().innerText()).toContain('No turns yet.');

  // A reload keeps the text, and still lists nothing.
  await page.reload();
  await expect.poll(() => chat.input.inputValue()).toBe(long);
  await expect.poll(() => page.locator('.conversations a').count()).toBe(0);

  await chat.input.fill('');
  await chat.sendAndWait('Hello?');
  const response = await chat.responses.innerText();
  await chat.input.fill(long);
  await chat.input.press('Enter');
  await isUntouched();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?']);
  await expect.poll(() => chat.responses.allInnerTexts()).toEqual([response]);
  await expect.poll(() => page.locator('.chart .caption').last().innerText()).toContain('Turn 1:');

  // An edit that is refused leaves no version.
  await chat.input.fill('');
  const message = page.locator('.message.user');
  await message.hover();
  await message.getByLabel('Edit and resend').click();
  await page.getByLabel('Edit message').fill(long);
  await page.getByLabel('Edit message').press('Enter');
  await isUntouched();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?']);
  await expect.poll(() => page.locator('.versions').count()).toBe(0);
  await chat.waitForConnection();
  await chat.input.fill('');
  await chat.sendAndWait('And now?');
  await page.reload();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['Hello?', 'And now?']);
  await expect.poll(() => page.locator('.chart .caption').last().innerText()).toContain('Turn 2:');
  expect(await page.locator('.conversations a').allInnerTexts()).toEqual(['Hello?']);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

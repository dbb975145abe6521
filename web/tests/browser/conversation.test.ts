import { afterEach, beforeEach, expect, it } from 'vitest';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { server } from './shared.js';

let chat: ChatPage;
beforeEach(async () => {
  chat = await ChatPage.open(server.url);
  await chat.waitForConnection();
});
afterEach(async () => {
  await chat.close();
});

const STORY = 'Tell me a short story.';

it('holds a conversation of ten turns, and prefills little for the last one', async () => {
  await chat.sendAndWait('My name is Zorban and I live in Quiltown.');
  expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
  for (const n of ['one to ten', 'one to five', 'one to eight', 'one to nine', 'one to six']) {
    await chat.sendAndWait(`Count from ${n}.`);
  }
  await chat.sendAndWait('What is 2 plus 2?');
  await chat.sendAndWait('What is 5 plus 1?');
  await chat.sendAndWait('Thank you.');
  await expect.poll(() => chat.responses.count()).toBe(10);
  await chat.openPanel();
  const caption = chat.page.locator('.chart .caption').last();
  const tenth = /Turn 10: (\d+) prefilled, (\d+) reused/;
  await expect.poll(() => caption.innerText()).toMatch(tenth);
  const [, prefilled, reused] = tenth.exec(await caption.innerText()) ?? [];
  expect(Number(prefilled)).toBeLessThan(32);
  expect(Number(reused)).toBeGreaterThan(150);
  expect(chat.consoleErrors).toEqual([]);
  expect([...chat.requestedHosts]).toEqual([new URL(server.url).host]);
});

it('cancels a response with Escape, and continues the conversation', async () => {
  await chat.send(STORY);
  await chat.waitForCharacters(20);
  await chat.page.keyboard.press('Escape');
  await chat.page.locator('.message.cut').waitFor();
  const partial = await chat.waitForResponse();
  expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
  await expect.poll(() => chat.responses.first().innerText()).toBe(partial);
});

it('cancels a response with the stop button', async () => {
  await chat.send(STORY);
  await chat.stopAtCharacters(20);
  await chat.page.locator('.message.cut').getByText('stopped').waitFor();
  await chat.waitForResponse();
  expect(chat.wire.receivedOf('response.done').at(-1)?.response.status).toBe('cancelled');
});

it('sends text while it is typed, and prefills it before it is committed', async () => {
  const text = 'My name is Zorban and I live in Quiltown, which is a town.';
  await chat.input.pressSequentially(text, { delay: 5 });
  await expect.poll(() => chat.wire.receivedOf('input_text_buffer.appended').at(-1)?.length).toBe(text.length);
  const before = chat.wire.sent.length;
  await chat.input.press('Enter');
  await chat.page.locator('.message.assistant').waitFor();
  await chat.waitForResponse();
  const since = chat.wire.sent.slice(before).map(({ type }) => type);
  expect(since).toEqual(['input_text_buffer.commit', 'response.create']);
  const usage = chat.wire.receivedOf('response.done').at(-1)?.response.usage;
  expect(usage?.input_token_details.prefilled_after_commit).toBeLessThan(8);
  expect((usage?.input_tokens ?? 0) - (usage?.input_token_details.cached_tokens ?? 0)).toBeGreaterThan(8);
});

it('shows nothing after an edited message but its response', async () => {
  await chat.sendAndWait('What is 3 plus 4?');
  await chat.sendAndWait('Count from one to five.');
  const first = chat.page.locator('.message.user').first();
  await first.hover();
  await first.getByLabel('Edit and resend').click();
  const field = chat.page.getByLabel('Edit message');
  await field.fill('What is 2 plus 6?');
  await field.press('Enter');
  await chat.userMessages.getByText('What is 2 plus 6?').waitFor();
  expect(await chat.waitForResponse()).toContain('8');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['What is 2 plus 6?']);
});

it('keeps a message whose edit is cancelled', async () => {
  await chat.sendAndWait('What is 3 plus 4?');
  await chat.page.keyboard.press('ArrowUp');
  const field = chat.page.getByLabel('Edit message');
  await field.fill('something else');
  await field.press('Escape');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['What is 3 plus 4?']);
});

it('regenerates a response', async () => {
  await chat.sendAndWait('What is 3 plus 4?');
  await chat.page.getByLabel('Regenerate').click();
  await expect.poll(() => chat.wire.receivedOf('response.done').length).toBe(2);
  await chat.waitForResponse();
  await expect.poll(() => chat.responses.count()).toBe(1);
  const again = chat.wire.receivedOf('response.done').at(-1)?.response.output[0];
  await expect.poll(() => chat.page.locator('.message.assistant').getAttribute('data-id')).toBe(again?.id);
});

it('branches, and switches between branches', async () => {
  await chat.sendAndWait('My name is Zorban.');
  await chat.sendAndWait('What is 3 plus 4?');
  const first = chat.page.locator('.message.assistant').first();
  await first.hover();
  await first.getByLabel('Branch from here').click();
  await chat.waitForConnection();
  await expect.poll(() => chat.responses.count()).toBe(1);
  const titles = (): Promise<string[]> => chat.page.locator('.conversations a').allInnerTexts();
  await expect.poll(titles).toEqual(['My name is Zorban.', 'Branch: My name is Zorban.']);
  expect(await chat.sendAndWait('What is my name?')).toContain('Zorban');
  expect(await titles()).toEqual(['My name is Zorban.', 'What is my name?']);
  await chat.page.locator('.conversations a').first().click();
  await chat.waitForConnection();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual([
    'My name is Zorban.',
    'What is 3 plus 4?',
  ]);
  await chat.page.locator('.conversations .branch a').click();
  await chat.waitForConnection();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual([
    'My name is Zorban.',
    'What is my name?',
  ]);
  await chat.page.reload();
  await chat.page.locator('h1', { hasText: 'What is my name?' }).waitFor();
});

it('undoes a deletion, with the keyboard alone', async () => {
  await chat.sendAndWait('My name is Zorban.');
  await chat.chooseOption('My name is Zorban.', 'Delete');
  await expect.poll(() => chat.userMessages.count()).toBe(0);
  await chat.page.locator('.undo:focus').waitFor();
  expect(await violations(chat)).toEqual([]);
  await chat.page.keyboard.press('Enter');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['My name is Zorban.']);
  await chat.waitForConnection();
  expect(await chat.sendAndWait('What is my name?')).toContain('Zorban');
  expect(chat.wire.resumeOutcomes).toEqual(['exact']);
});

it('deletes a conversation in the browser and on the server once undo has expired', async () => {
  const { page } = chat;
  const undoButton = page.getByRole('button', { name: 'Undo deleting “What is 3 plus 4?”' });
  const sessions = (): string[] => chat.wire.receivedOf('session.created').map(({ session }) => session.id);
  const statusOf = async (id: string): Promise<number> =>
    (await fetch(`${server.url}v1/realtime/sessions/${id}`)).status;
  const sendAndDelete = async (): Promise<string> => {
    const id = sessions().at(-1) ?? '';
    await chat.sendAndWait('What is 3 plus 4?');
    await page.locator('.conversations li').hover();
    await page.getByLabel('Options of “What is 3 plus 4?”').click();
    await page.getByRole('menuitem', { name: 'Delete' }).click();
    await undoButton.waitFor();
    await page.locator('.conversations li').hover();
    await expect.poll(() => sessions().at(-1)).not.toBe(id); // session of the conversation opened instead
    await chat.waitForConnection();
    expect(await statusOf(id)).toBe(200);
    return id;
  };

  await page.clock.install();
  const expired = await sendAndDelete();
  await page.clock.fastForward(15_000);
  await undoButton.waitFor(); // because the pointer is on its row
  expect(await statusOf(expired)).toBe(200);
  await page.mouse.move(640, 20);
  await page.clock.fastForward(2000);
  await expect.poll(() => undoButton.count()).toBe(0);
  await expect.poll(() => statusOf(expired)).toBe(404);

  const abandoned = await sendAndDelete();
  await page.reload();
  await expect.poll(() => statusOf(abandoned)).toBe(404);
  await chat.waitForConnection();
  await expect.poll(() => page.locator('.conversations li').count()).toBe(0);
  expect(chat.consoleErrors).toEqual([]);
});

it('branches at a user message, whose response can then be requested', async () => {
  await chat.sendAndWait('My name is Zorban.');
  await chat.sendAndWait('What is my name?');
  const question = chat.page.locator('.message.user').last();
  await question.hover();
  await question.getByLabel('Branch from here').click();
  await chat.waitForConnection();
  const missingResponse = chat.page.locator('.missing-response');
  await missingResponse.getByText('This message has no response yet.').waitFor();
  await missingResponse.getByRole('button', { name: 'Generate response' }).click();
  await chat.page.locator('.message.assistant').nth(1).waitFor();
  expect(await chat.waitForResponse()).toContain('Zorban');
  await expect.poll(() => missingResponse.count()).toBe(0);
});

it('shows a tool call, and submits an edited result', async () => {
  await chat.page.getByLabel('Settings', { exact: true }).click();
  await chat.page.getByText('Insert example').click();
  await chat.page.getByRole('button', { name: 'Save' }).click();
  await chat.page.locator('dialog').waitFor({ state: 'detached' });
  await chat.send('What is the weather in Paris?');
  const result = chat.page.getByLabel('Result of get_weather');
  await result.waitFor();
  await expect.poll(() => chat.page.locator('.call .arguments').innerText()).toContain('Paris');
  await result.fill('{"temperature": 7, "conditions": "snow"}');
  await chat.page.getByRole('button', { name: 'Submit result' }).click();
  expect(await chat.waitForResponse()).toMatch(/7|snow/);
  await expect.poll(() => chat.page.locator('.call .output').innerText()).toContain('snow');
});

it('shows a refused setting beside its field, and changes nothing', async () => {
  await chat.page.getByLabel('Settings', { exact: true }).click();
  await chat.page.getByLabel('Temperature').fill('9');
  await chat.page.getByRole('button', { name: 'Save' }).click();
  await chat.page.locator('#field-temperature-error').getByText('At most 2.').waitFor();
  await chat.page.getByLabel('Temperature').fill('');
  await chat.page.getByLabel('Tools').fill('{');
  await chat.page.getByRole('button', { name: 'Save' }).click();
  await chat.page.locator('#field-tools-error').getByText('Invalid JSON').waitFor();
  await chat.page.getByRole('button', { name: 'Cancel' }).click();
  expect(await chat.sendAndWait('What is 3 plus 4?')).toContain('7');
});

it('begins a conversation with another model and the chosen settings', async () => {
  await chat.sendAndWait('What is 3 plus 4?');
  await chat.page.getByLabel('Settings', { exact: true }).click();
  const model = chat.page.getByRole('combobox', { name: 'Model' });
  await expect.poll(() => model.inputValue()).toBe('demo');
  await model.selectOption('second');
  await chat.page.getByLabel('Instructions').fill('Be brief.');
  await chat.page.getByLabel('Temperature').fill('0.5');
  await chat.page.getByRole('button', { name: 'Save' }).click();
  await expect.poll(() => chat.wire.receivedOf('session.created').at(-1)?.session.model).toBe('second');
  const expected = { instructions: 'Be brief.', temperature: 0.5, model: 'second' };
  await expect.poll(() => chat.wire.receivedOf('session.updated').at(-1)?.session).toMatchObject(expected);
  await expect.poll(() => chat.userMessages.count()).toBe(0);
  await chat.sendAndWait('What is 2 plus 2?');
  await chat.page.reload();
  await chat.waitForConnection();
  expect(chat.wire.receivedOf('session.updated').at(-1)?.session).toMatchObject(expected);
  await chat.page.locator('.conversations a').last().click();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['What is 3 plus 4?']);
});

it('renders Markdown without unsafe HTML', async () => {
  const unsafe = '<img src=x onerror="document.title=1"> **bold** [x](javascript:alert(1))';
  await chat.send(unsafe);
  await chat.waitForResponse();
  await expect.poll(() => chat.userMessages.first().innerText()).toBe(unsafe);
  await chat.page.evaluate(replaceStoredResponse, `${unsafe}\n\n\`\`\`js\n1 < 2\n\`\`\`\n\n[y](https://x.test/)`);
  await chat.page.reload();
  await chat.waitForConnection();
  const response = chat.responses.first();
  await expect.poll(() => response.locator('strong').innerText()).toBe('bold');
  await expect.poll(() => response.locator('pre code').innerText()).toBe('1 < 2\n');
  const links = await response.locator('a').evaluateAll((all) => all.map((a) => a.outerHTML));
  expect(links).toHaveLength(1);
  expect(links[0]).toMatch(/href="https:\/\/x\.test\/".*rel="noopener/);
  await expect.poll(() => response.innerText()).toContain('<img src=x');
  await expect.poll(() => chat.page.locator('.transcript img').count()).toBe(0);
  expect(await chat.page.title()).not.toBe('1');
  expect(chat.consoleErrors).toEqual([]);
});

/** Replace the stored response with `text`. Runs in the page. */
function replaceStoredResponse(text: string): void {
  dispatchEvent(new Event('pagehide'));
  const name = `continuo.talk.${location.hash.slice(1)}`;
  const stored = JSON.parse(localStorage.getItem(name) ?? '') as {
    saved: { items: { content: { text: string }[] }[] };
  };
  const part = stored.saved.items[1]?.content[0];
  if (part) part.text = text;
  localStorage.setItem(name, JSON.stringify(stored));
  // Keep the page from overwriting the change when it is closed.
  Storage.prototype.setItem = () => undefined;
}

it('copies a response, also without the clipboard API', async () => {
  await chat.page.addInitScript(() => {
    Object.defineProperty(navigator, 'clipboard', { value: undefined });
  });
  await chat.page.reload();
  await chat.waitForConnection();
  const response = await chat.sendAndWait('What is 3 plus 4?');
  await chat.page.locator('.message.assistant').getByLabel('Copy').click();
  await chat.page.locator('.message.assistant .icon-button.done').waitFor();
  await chat.input.click();
  await chat.page.keyboard.press('Control+V');
  await expect.poll(() => chat.input.inputValue()).toBe(response);
});

/** Versions of a conversation, and its name, search, export and import. */

import { expect, it } from 'vitest';
import { violations } from './axe.js';
import { ChatPage } from './chat_page.js';
import { server } from './shared.js';

async function edit(chat: ChatPage, text: string, replacement: string): Promise<void> {
  const message = chat.page.locator('.message.user', { hasText: text });
  await message.hover();
  await message.getByLabel('Edit and resend').click();
  const field = chat.page.getByLabel('Edit message');
  await field.fill(replacement);
  await field.press('Enter');
  await chat.page.locator('.message.user .body', { hasText: replacement }).waitFor();
  await chat.waitForResponse();
}

it('keeps each version of an edited message and of a regenerated response, with what follows it', async () => {
  const chat = await ChatPage.open(server.url);
  const { page } = chat;
  const users = page.locator('.message.user');
  const texts = (): Promise<string[]> => chat.userMessages.allInnerTexts();
  await chat.sendAndWait('My name is Zorban.');
  await chat.sendAndWait('What is 3 plus 4?');
  await chat.sendAndWait('What is my name?');
  await expect.poll(() => page.locator('.versions').count()).toBe(0);

  await edit(chat, 'What is 3 plus 4?', 'What is 2 plus 6?');
  expect(await texts()).toEqual(['My name is Zorban.', 'What is 2 plus 6?']);
  expect(await chat.responses.last().innerText()).toContain('8');
  expect(await chat.versionAt(users.nth(1))).toBe('2/2');
  await expect.poll(() => page.locator('.conversations li').count()).toBe(1);
  const usage = chat.wire.receivedOf('response.done').at(-1)?.response.usage;
  expect(usage?.input_token_details.cached_tokens).toBeGreaterThan(10); // the fork shares its KV
  await chat.sendAndWait('Thank you.');

  await page.getByLabel('Regenerate').click();
  await page.locator('.message.assistant > .versions').waitFor();
  await chat.waitForResponse();
  expect(await chat.versionAt(page.locator('.message.assistant').last())).toBe('2/2');
  expect(await texts()).toEqual(['My name is Zorban.', 'What is 2 plus 6?', 'Thank you.']);
  expect(await violations(chat)).toEqual([]);

  // Back to the first version, with the keyboard, and on in it.
  await chat.input.fill('not sent yet');
  await users.nth(1).getByLabel('Previous version').press('Enter');
  await expect.poll(texts).toEqual(['My name is Zorban.', 'What is 3 plus 4?', 'What is my name?']);
  expect(await chat.versionAt(users.nth(1))).toBe('1/2');
  await expect.poll(() => page.evaluate(() => document.activeElement?.ariaLabel)).toBe('Next version');
  await expect.poll(() => chat.input.inputValue()).toBe('not sent yet');
  await chat.input.fill('');
  await chat.waitForConnection();
  expect(await chat.sendAndWait('What is my name?')).toContain('Zorban');

  // The version that was open last is shown after a reload, and from there the others.
  await page.reload();
  await chat.waitForConnection();
  await expect.poll(texts).toHaveLength(4);
  expect(await chat.versionAt(users.nth(1))).toBe('1/2');
  await users.nth(1).getByLabel('Next version').press('Enter');
  await expect.poll(texts).toEqual(['My name is Zorban.', 'What is 2 plus 6?', 'Thank you.']);
  expect(await chat.versionAt(users.nth(1))).toBe('2/2');
  expect(await chat.versionAt(page.locator('.message.assistant').last())).toBe('2/2');
  await chat.waitForConnection();
  expect(chat.wire.resumeOutcomes.every((how) => how === 'exact')).toBe(true);

  // The title follows the first message of the version; deletion and undo concern all versions.
  await edit(chat, 'My name is Zorban.', 'My name is Quill.');
  await page.locator('h1', { hasText: 'My name is Quill.' }).waitFor();
  expect(await chat.versionAt(users.first())).toBe('2/2');
  expect(await chat.sendAndWait('What is my name?')).toContain('Quill');
  expect(await page.locator('.conversations a').allInnerTexts()).toEqual(['My name is Quill.']);
  await chat.chooseOption('My name is Quill.', 'Delete');
  await expect.poll(texts).toEqual([]);
  await page.locator('.undo:focus').press('Enter');
  await expect.poll(texts).toEqual(['My name is Quill.', 'What is my name?']);
  await users.first().getByLabel('Previous version').press('Enter');
  await expect.poll(texts).toEqual(['My name is Zorban.', 'What is 2 plus 6?', 'Thank you.']);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('renames, finds, exports and imports a conversation', async () => {
  const chat = await ChatPage.open(server.url);
  const { page } = chat;
  const links = page.locator('.conversations a');
  await chat.sendAndWait('My name is Zorban.');
  await edit(chat, 'My name is Zorban.', 'My name is Quill.');
  await chat.sendAndWait('What is 3 plus 4?');
  await page.getByText('New conversation').click();
  await chat.sendAndWait('Count from one to five.');

  // Rename: with the menu, with F2, and not after Escape; without a name the title follows the message.
  await chat.chooseOption('My name is Quill.', 'Rename');
  await page.keyboard.type('Names');
  await page.keyboard.press('Enter');
  await expect.poll(() => links.allInnerTexts()).toEqual(['Count from one to five.', 'Names']);
  await page.keyboard.press('F2');
  await page.keyboard.type('Other');
  await page.keyboard.press('Escape');
  await expect.poll(() => links.allInnerTexts()).toContain('Names');
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('F2');
  await page.keyboard.type('Numbers');
  await page.keyboard.press('Enter');
  await page.locator('h1', { hasText: 'Numbers' }).waitFor();
  await page.reload();
  await page.locator('h1', { hasText: 'Numbers' }).waitFor();
  await chat.chooseOption('Numbers', 'Rename');
  await page.keyboard.press('Backspace');
  await page.keyboard.press('Enter');
  await page.locator('h1', { hasText: 'Count from one to five.' }).waitFor();

  // Search: in titles and messages, in each version.
  await page.keyboard.press('Control+k');
  await page.keyboard.type('zorban NAME');
  await expect.poll(() => links.allInnerTexts()).toEqual([expect.stringMatching(/^Names\n+My name is Zorban\.$/)]);
  expect(await links.locator('mark').allInnerTexts()).toEqual(['name', 'Zorban']);
  expect(await violations(chat)).toEqual([]);
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['My name is Zorban.']);
  await page.locator('.message.user.found').waitFor();
  await page.getByLabel('Search conversations').fill('nowhere');
  await page.getByText('Nothing found.').waitFor();
  await page.keyboard.press('Escape');
  await expect.poll(() => links.count()).toBe(2);
  await page.locator('.message.user').getByLabel('Next version').click();
  await expect.poll(() => chat.userMessages.count()).toBe(2);

  // Export and import.
  const save = async (option: string): Promise<{ name: string; text: string }> => {
    const downloaded = page.waitForEvent('download');
    await chat.chooseOption('Names', option);
    const download = await downloaded;
    const text = Buffer.concat(await (await download.createReadStream()).toArray()).toString();
    return { name: download.suggestedFilename(), text };
  };
  const markdown = await save('Export as Markdown');
  expect(markdown.name).toBe('names.md');
  expect(markdown.text).toMatch(/^# Names\n[^]*## You\n\nMy name is Quill\.\n\n## demo\n\n[^]*## You\n\nWhat is 3 plus 4\?/);
  const json = await save('Export as JSON');
  expect(json.name).toBe('names.json');
  await chat.chooseOption('Names', 'Delete');

  const sessions = chat.wire.receivedOf('session.created').length;
  const chooseFile = async ({ name, text }: { name: string; text: string }): Promise<void> => {
    const chooser = page.waitForEvent('filechooser');
    await page.getByRole('button', { name: 'Import a conversation' }).press('Enter');
    await (await chooser).setFiles({ name, mimeType: '', buffer: Buffer.from(text) });
  };
  await chooseFile(markdown);
  await page.getByRole('alert').getByText('The file is not JSON.').waitFor();
  await chooseFile(json);
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['My name is Quill.', 'What is 3 plus 4?']);
  await page.locator('h1', { hasText: 'Names' }).waitFor();
  await expect.poll(() => page.locator('.unsent').count()).toBe(0);
  expect(chat.wire.receivedOf('session.created').length).toBeGreaterThan(sessions);
  expect(chat.wire.receivedOf('conversation.item.added').slice(-4).map(({ item }) => item.type)).toEqual(
    Array(4).fill('message'),
  );
  expect(await chat.sendAndWait('What is my name?')).toContain('Quill');
  await page.locator('.message.user').first().getByLabel('Previous version').press('Enter');
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['My name is Zorban.']);
  await chat.waitForConnection();
  expect(await chat.sendAndWait('What is my name?')).toContain('Zorban');
  await page.reload();
  await expect.poll(() => chat.userMessages.allInnerTexts()).toEqual(['My name is Zorban.', 'What is my name?']);
  expect(await chat.versionAt(page.locator('.message.user').first())).toBe('1/2');
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

it('says in words that the storage is full, and what was removed to make room', async () => {
  const chat = await ChatPage.open(server.url, { viewport: { width: 390, height: 760 } });
  const { page } = chat;
  const notice = page.locator('.foot .notice');
  const openMenu = (): Promise<void> => page.getByRole('button', { name: 'Conversations' }).click();
  await chat.sendAndWait('My name is Zorban.');
  const size = await page.evaluate(() => {
    dispatchEvent(new Event('pagehide'));
    return (localStorage.getItem(`continuo.talk.${location.hash.slice(1)}`) ?? '').length;
  });
  await openMenu();
  await page.getByText('New conversation').click();
  // Fill the storage but for less than a conversation needs.
  await page.evaluate((room) => {
    let length = 4_000_000;
    for (let filler = ''; length > room / 4; ) {
      try {
        localStorage.setItem('filler', filler + 'x'.repeat(length));
        filler += 'x'.repeat(length);
      } catch {
        length = Math.floor(length / 2);
      }
    }
  }, size);
  // A notice is hidden again after a while, so each is awaited from before it can appear.
  await Promise.all([
    notice.getByText('Removed to make room: “My name is Zorban.”.').waitFor(),
    chat.sendAndWait('What is 3 plus 4?'),
  ]);
  await openMenu();
  expect(await page.locator('.conversations a').allInnerTexts()).toEqual(['What is 3 plus 4?']);
  await page.locator('.scrim').click({ position: { x: 370, y: 300 } });
  let isSaved = true;
  const isFull = notice.getByText('this conversation is no longer saved here. Export it').waitFor({ timeout: 60_000 }).then(() => {
    isSaved = false;
  });
  const sendStories = async (): Promise<void> => {
    for (let i = 0; i < 7 && isSaved; i += 1) await chat.sendAndWait('Tell me a short story.');
  };
  await Promise.all([isFull, sendStories()]);
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
  expect(chat.consoleErrors).toEqual([]);
  await chat.close();
});

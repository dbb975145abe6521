import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { serious } from './axe.js';
import { Server } from './server.js';
import { launch, Visit } from './chat_page.js';

let server: Server;
let browser: Browser;
let visit: Visit;
beforeAll(async () => {
  const names = ['--served-model-name', 'demo', '--served-model-name', 'second'];
  [server, browser] = await Promise.all([Server.start(names), launch()]);
});
afterAll(async () => {
  await browser.close();
  await server.stop();
});
beforeEach(async () => {
  visit = await Visit.begin(browser, server.url);
  await visit.connected();
});
afterEach(async () => {
  await visit.close();
});

const STORY = 'Tell me a short story.';

it('talks for ten turns, and computes little for the last one', async () => {
  await visit.say('My name is Zorban and I live in Quiltown.');
  expect(await visit.say('What is 3 plus 4?')).toContain('7');
  for (const n of ['one to ten', 'one to five', 'one to eight', 'one to nine', 'one to six']) {
    await visit.say(`Count from ${n}.`);
  }
  await visit.say('What is 2 plus 2?');
  await visit.say('What is 5 plus 1?');
  await visit.say('Thank you.');
  await expect.poll(() => visit.answers.count()).toBe(10);
  const caption = visit.page.locator('.chart .caption').last();
  const tenth = /Turn 10: (\d+) prefilled, (\d+) reused/;
  await expect.poll(() => caption.innerText()).toMatch(tenth);
  const [, prefilled, reused] = tenth.exec(await caption.innerText()) ?? [];
  expect(Number(prefilled)).toBeLessThan(32);
  expect(Number(reused)).toBeGreaterThan(150);
  expect(visit.complaints).toEqual([]);
  expect([...visit.requested]).toEqual([new URL(server.url).host]);
});

it('stops at Escape, and goes on from there', async () => {
  await visit.send(STORY);
  await visit.under(20);
  await visit.page.keyboard.press('Escape');
  await visit.page.locator('.message.cut').waitFor();
  const cut = await visit.finished();
  expect(await visit.say('What is 3 plus 4?')).toContain('7');
  await expect.poll(() => visit.answers.first().innerText()).toBe(cut);
});

it('stops with its button, and says no more than was said then', async () => {
  await visit.send(STORY);
  await visit.stop(20);
  await visit.page.locator('.message.cut').getByText('stopped').waitFor();
  await visit.finished();
  expect(visit.wire.heard('response.done').at(-1)?.response.status).toBe('cancelled');
});

it('sends words while they are typed, and computes them before they are sent', async () => {
  const words = 'My name is Zorban and I live in Quiltown, which is a town.';
  await visit.field.pressSequentially(words, { delay: 5 });
  await expect.poll(() => visit.wire.heard('input_text_buffer.appended').at(-1)?.length).toBe(words.length);
  const before = visit.wire.sent.length;
  await visit.field.press('Enter');
  await visit.page.locator('.message.assistant').waitFor();
  await visit.finished();
  const since = visit.wire.sent.slice(before).map(({ type }) => type);
  expect(since).toEqual(['input_text_buffer.commit', 'response.create']);
  const usage = visit.wire.heard('response.done').at(-1)?.response.usage;
  expect((usage?.input_tokens ?? 0) - (usage?.input_token_details.cached_tokens ?? 0)).toBeLessThan(8);
});

it('takes back what followed an edited message', async () => {
  await visit.say('What is 3 plus 4?');
  await visit.say('Count from one to five.');
  const first = visit.page.locator('.message.user').first();
  await first.hover();
  await first.getByLabel('Edit and ask again').click();
  const field = visit.page.getByLabel('Edit message');
  await field.fill('What is 2 plus 6?');
  await field.press('Enter');
  await visit.page.getByText('What is 2 plus 6?').waitFor();
  expect(await visit.finished()).toContain('8');
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['What is 2 plus 6?']);
});

it('keeps a message that is not edited after all', async () => {
  await visit.say('What is 3 plus 4?');
  await visit.page.keyboard.press('ArrowUp');
  const field = visit.page.getByLabel('Edit message');
  await field.fill('something else');
  await field.press('Escape');
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['What is 3 plus 4?']);
});

it('answers again', async () => {
  await visit.say('What is 3 plus 4?');
  await visit.page.getByLabel('Answer again').click();
  await expect.poll(() => visit.wire.heard('response.done').length).toBe(2);
  await visit.finished();
  await expect.poll(() => visit.answers.count()).toBe(1);
  const again = visit.wire.heard('response.done').at(-1)?.response.output[0];
  await expect.poll(() => visit.page.locator('.message.assistant').getAttribute('data-id')).toBe(again?.id);
});

it('branches, and switches between branches', async () => {
  await visit.say('My name is Zorban.');
  await visit.say('What is 3 plus 4?');
  const first = visit.page.locator('.message.assistant').first();
  await first.hover();
  await first.getByLabel('Branch from here').click();
  await visit.connected();
  await expect.poll(() => visit.answers.count()).toBe(1);
  expect(await visit.say('What is my name?')).toContain('Zorban');
  await visit.page.locator('.talks a').first().click();
  await visit.connected();
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual([
    'My name is Zorban.',
    'What is 3 plus 4?',
  ]);
  await visit.page.locator('.talks .branch a').click();
  await visit.connected();
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual([
    'My name is Zorban.',
    'What is my name?',
  ]);
});

it('gives back what was deleted, with the keyboard alone', async () => {
  await visit.say('My name is Zorban.');
  await visit.page.getByLabel('Delete “My name is Zorban.”').press('Enter');
  await expect.poll(() => visit.questions.count()).toBe(0);
  await visit.page.locator('.undo:focus').waitFor();
  expect(await serious(visit)).toEqual([]);
  await visit.page.keyboard.press('Enter');
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['My name is Zorban.']);
  await visit.connected();
  expect(await visit.say('What is my name?')).toContain('Zorban');
  expect(visit.wire.resumed).toEqual(['exact']);
});

it('forgets what was deleted, here and on the server, when nobody wants it back', async () => {
  const { page } = visit;
  const undo = page.getByRole('button', { name: 'Undo: “What is 3 plus 4?” was deleted' });
  const sessions = (): string[] => visit.wire.heard('session.created').map(({ session }) => session.id);
  const known = async (id: string): Promise<number> =>
    (await fetch(`${server.url}v1/realtime/sessions/${id}`)).status;
  const remove = async (): Promise<string> => {
    const id = sessions().at(-1) ?? '';
    await visit.say('What is 3 plus 4?');
    await page.locator('.talks li').hover();
    await page.getByLabel('Delete “What is 3 plus 4?”').click();
    await undo.waitFor();
    await expect.poll(() => sessions().at(-1)).not.toBe(id); // of what is shown instead
    await visit.connected();
    expect(await known(id)).toBe(200);
    return id;
  };

  await page.clock.install();
  const late = await remove();
  await page.clock.fastForward(15_000);
  await undo.waitFor(); // under the pointer
  expect(await known(late)).toBe(200);
  await page.mouse.move(640, 20);
  await page.clock.fastForward(2000);
  await expect.poll(() => undo.count()).toBe(0);
  await expect.poll(() => known(late)).toBe(404);

  const left = await remove();
  await page.reload();
  await expect.poll(() => known(left)).toBe(404);
  await visit.connected();
  await expect.poll(() => page.locator('.talks li').count()).toBe(0);
  expect(visit.complaints).toEqual([]);
});

it('branches at a question, which can then be asked again', async () => {
  await visit.say('My name is Zorban.');
  await visit.say('What is my name?');
  const question = visit.page.locator('.message.user').last();
  await question.hover();
  await question.getByLabel('Branch from here').click();
  await visit.connected();
  const unanswered = visit.page.locator('.unanswered');
  await unanswered.getByText('This has no answer yet.').waitFor();
  await unanswered.getByRole('button', { name: 'Ask for one' }).click();
  await visit.page.locator('.message.assistant').nth(1).waitFor();
  expect(await visit.finished()).toContain('Zorban');
  await expect.poll(() => unanswered.count()).toBe(0);
});

it('shows a tool call, whose result can be changed', async () => {
  await visit.page.getByLabel('Settings', { exact: true }).click();
  await visit.page.getByText('Put an example in').click();
  await visit.page.getByRole('button', { name: 'Save' }).click();
  await visit.page.locator('dialog').waitFor({ state: 'detached' });
  await visit.send('What is the weather in Paris?');
  const result = visit.page.getByLabel('Result of get_weather');
  await result.waitFor();
  await expect.poll(() => visit.page.locator('.call .arguments').innerText()).toContain('Paris');
  await result.fill('{"temperature": 7, "conditions": "snow"}');
  await visit.page.getByRole('button', { name: 'Return this' }).click();
  expect(await visit.finished()).toMatch(/7|snow/);
  await expect.poll(() => visit.page.locator('.call .output').innerText()).toContain('snow');
});

it('says beside the field what is wrong with a setting, and changes nothing', async () => {
  await visit.page.getByLabel('Settings', { exact: true }).click();
  await visit.page.getByLabel('Temperature').fill('9');
  await visit.page.getByRole('button', { name: 'Save' }).click();
  await visit.page.locator('#field-temperature-error').getByText('<= 2').waitFor();
  await visit.page.getByLabel('Temperature').fill('');
  await visit.page.getByLabel('Tools').fill('{');
  await visit.page.getByRole('button', { name: 'Save' }).click();
  await visit.page.locator('#field-tools-error').getByText('not JSON').waitFor();
  await visit.page.getByRole('button', { name: 'Cancel' }).click();
  expect(await visit.say('What is 3 plus 4?')).toContain('7');
});

it('begins a conversation with another model, and with the settings that were chosen', async () => {
  await visit.say('What is 3 plus 4?');
  await visit.page.getByLabel('Settings', { exact: true }).click();
  const model = visit.page.getByRole('combobox', { name: 'Model' });
  await expect.poll(() => model.inputValue()).toBe('demo');
  await model.selectOption('second');
  await visit.page.getByLabel('Instructions').fill('Be brief.');
  await visit.page.getByLabel('Temperature').fill('0.5');
  await visit.page.getByRole('button', { name: 'Save' }).click();
  await expect.poll(() => visit.wire.heard('session.created').at(-1)?.session.model).toBe('second');
  const told = { instructions: 'Be brief.', temperature: 0.5, model: 'second' };
  await expect.poll(() => visit.wire.heard('session.updated').at(-1)?.session).toMatchObject(told);
  await expect.poll(() => visit.questions.count()).toBe(0);
  await visit.say('What is 2 plus 2?');
  await visit.page.reload();
  await visit.connected();
  expect(visit.wire.heard('session.updated').at(-1)?.session).toMatchObject(told);
  await visit.page.locator('.talks a').last().click();
  await expect.poll(() => visit.questions.allInnerTexts()).toEqual(['What is 3 plus 4?']);
});

it('draws Markdown, and nothing that is not safe', async () => {
  const wicked = '<img src=x onerror="document.title=1"> **bold** [x](javascript:alert(1))';
  await visit.send(wicked);
  await visit.finished();
  await expect.poll(() => visit.questions.first().innerText()).toBe(wicked);
  await visit.page.evaluate(answered, `${wicked}\n\n\`\`\`js\n1 < 2\n\`\`\`\n\n[y](https://x.test/)`);
  await visit.page.reload();
  await visit.connected();
  const answer = visit.answers.first();
  await expect.poll(() => answer.locator('strong').innerText()).toBe('bold');
  await expect.poll(() => answer.locator('pre code').innerText()).toBe('1 < 2\n');
  const links = await answer.locator('a').evaluateAll((all) => all.map((a) => a.outerHTML));
  expect(links).toHaveLength(1);
  expect(links[0]).toMatch(/href="https:\/\/x\.test\/".*rel="noopener/);
  await expect.poll(() => answer.innerText()).toContain('<img src=x');
  await expect.poll(() => visit.page.locator('.transcript img').count()).toBe(0);
  expect(await visit.page.title()).not.toBe('1');
  expect(visit.complaints).toEqual([]);
});

/** Makes the answer that the page has kept another one. */
function answered(text: string): void {
  dispatchEvent(new Event('pagehide'));
  const name = `continuo.talk.${location.hash.slice(1)}`;
  const kept = JSON.parse(localStorage.getItem(name) ?? '') as {
    saved: { items: { content: { text: string }[] }[] };
  };
  const part = kept.saved.items[1]?.content[0];
  if (part) part.text = text;
  localStorage.setItem(name, JSON.stringify(kept));
  // What the page stores when it is left would undo it.
  Storage.prototype.setItem = () => undefined;
}

it('copies an answer, also where the browser gives the page no clipboard', async () => {
  await visit.page.addInitScript(() => {
    Object.defineProperty(navigator, 'clipboard', { value: undefined });
  });
  await visit.page.reload();
  await visit.connected();
  const said = await visit.say('What is 3 plus 4?');
  await visit.page.locator('.message.assistant').getByLabel('Copy').click();
  await visit.page.locator('.message.assistant .icon-button.done').waitFor();
  await visit.field.click();
  await visit.page.keyboard.press('Control+V');
  await expect.poll(() => visit.field.inputValue()).toBe(said);
});

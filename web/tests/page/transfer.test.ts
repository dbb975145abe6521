import { expect, it } from 'vitest';
import type { Item } from '../../src/client/index.js';
import { itemsOf, newConversation, type StoredConversation, titleFrom } from '../../src/page/storage.js';
import { fileNameOf, fromJson, toJson, toMarkdown } from '../../src/page/transfer.js';

const user = (id: string, text: string): Item => ({
  id,
  type: 'message',
  role: 'user',
  content: [{ type: 'input_text', text }],
});
const assistant = (id: string, text: string): Item => ({
  id,
  type: 'message',
  role: 'assistant',
  content: [{ type: 'output_text', text }],
});

function stored(items: Item[], fields: Partial<StoredConversation> = {}): StoredConversation {
  return { ...newConversation(), title: 'Weather in Paris', saved: { items, turns: [] }, ...fields };
}

const call: Item = { id: 'c1', type: 'function_call', call_id: 'k', name: 'get_weather', arguments: '{"city":"Paris"}' };
const output: Item = { id: 'o1', type: 'function_call_output', call_id: 'k', output: 'a ``` fence\nand a line' };

it('exports Markdown that a reader and a parser both understand', () => {
  const items = [user('u1', 'The weather?'), call, output, assistant('a1', '**18 °C**\n\n- dry')];
  expect(toMarkdown(stored(items), 'org/demo')).toBe(
    '# Weather in Paris\n\nA conversation with the model `org/demo`.\n\n' +
      '## You\n\nThe weather?\n\n' +
      '## demo\n\nCalled `get_weather`:\n\n```json\n{"city":"Paris"}\n```\n\n' +
      '## Tool\n\n````\na ``` fence\nand a line\n````\n\n' +
      '## demo\n\n**18 °C**\n\n- dry\n',
  );
  const cut = stored([{ ...assistant('a1', 'Once upon'), status: 'incomplete' }]);
  expect(toMarkdown(cut, null)).toContain('## Model\n\nOnce upon\n\n*(incomplete)*');
});

it('imports what it exports: items, versions, settings, title', () => {
  const first = stored([user('u1', 'Hello'), assistant('a1', 'Hi.')], {
    settings: { temperature: 0.5, instructions: 'Be brief.' },
    title: 'My name for it',
    renamed: true,
  });
  const second = stored([user('u1', 'Hello'), assistant('b1', 'Good day.'), call, output], {
    version: { of: first.id, made: 5 },
  });
  const waiting = stored([], { version: { of: first.id, made: 6 } });
  const [opened, other, ...more] = fromJson(toJson(second, [waiting, first, second], 'demo'));
  expect(more).toEqual([]);
  expect(itemsOf(opened)).toEqual(second.saved.items);
  expect(opened.settings).toEqual(second.settings);
  if (!other) throw new Error('the other version is missing');
  expect(itemsOf(other)).toEqual(first.saved.items);
  expect(other.version).toBeUndefined(); // it was made first
  expect(opened.version).toMatchObject({ of: other.id });
  expect(opened.id).not.toBe(second.id);
  expect(opened.pending.map((event) => event.type)).toEqual(Array(4).fill('conversation.item.create'));
  expect(new Set(opened.pending.map((event) => event.event_id)).size).toBe(4);

  const [named] = fromJson(toJson(first, [first], 'demo'));
  expect(named).toMatchObject({ title: 'My name for it', renamed: true, settings: first.settings });
});

it('keeps the title of a branch, which is its own first message', () => {
  const items = [user('u1', 'Hello'), assistant('a1', 'Hi.'), user('u2', 'And now?')];
  const branch = stored(items, { branch: { shared: 2, of: 'Hello' }, title: 'And now?' });
  const [imported] = fromJson(toJson(branch, [branch], 'demo'));
  expect(imported).toMatchObject({ title: 'And now?', branch: { shared: 2, of: 'Hello' } });
  const json = JSON.parse(toJson(branch, [branch], 'demo')) as object;
  const damaged = { ...json, branch: { shared: '2' } };
  expect(fromJson(JSON.stringify(damaged))[0]).toMatchObject({ title: 'Hello' });
});

it('exports a message that the server has not confirmed, and drops what it does not know', () => {
  const pending = user('u9', 'Not yet there');
  const waiting = stored([assistant('a1', 'Hi.')], {
    pending: [{ type: 'conversation.item.create', item: pending }, { type: 'response.create' }],
  });
  const json = JSON.parse(toJson(waiting, [waiting], null)) as { items: Record<string, unknown>[] };
  expect(json.items.map(({ id }) => id)).toEqual(['a1', 'u9']);
  Object.assign(json.items[0] ?? {}, { surprise: 1, status: 'in_progress' });
  const [imported] = fromJson(JSON.stringify(json));
  expect(itemsOf(imported)).toEqual([assistant('a1', 'Hi.'), pending]);
});

const file = (fields: object): string =>
  JSON.stringify({ format: 'continuo.conversation', version: 1, items: [user('u1', 'x')], ...fields });

it.each([
  ['{', 'not JSON'],
  ['[]', 'not a conversation'],
  ['{"format":"other"}', 'not a conversation'],
  [file({ version: 2 }), 'version 2'],
  [file({ items: [] }), 'no messages'],
  [file({ items: {} }), "'items' is not a list"],
  [file({ items: [user('u1', 'x'), { type: 'message', id: 'u2', role: 'user' }] }), "'items[1]'"],
  [file({ items: [{ ...user('u1', 'x'), role: 'root' }] }), "'items[0]'"],
  [file({ items: [{ ...user('<b>', 'x') }] }), "'items[0]'"],
  [file({ items: [user('u1', 'x'), user('u1', 'y')] }), "'items[1].id' occurs twice"],
  [file({ versions: [[user('u1', 'x'), 5]] }), "'versions[0][1]'"],
  [file({ items: Array.from({ length: 2001 }, (_, i) => user(`u${i}`, 'x')) }), '2,001 messages'],
])('refuses a file in words, case %#', (text, reason) => {
  expect(() => fromJson(text)).toThrow(reason);
});

it('takes titles and file names from messages', () => {
  expect(titleFrom('  Two\n\nlines ')).toBe('Two lines');
  expect(titleFrom('word '.repeat(50))).toBe(`${'word '.repeat(12).trim()}…`);
  expect(titleFrom('x'.repeat(100_000))).toHaveLength(60);
  expect(fileNameOf('What’s the weather: Köln / Paris?')).toBe('what-s-the-weather-köln-paris');
  expect(fileNameOf('???')).toBe('conversation');
});

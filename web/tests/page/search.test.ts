import { expect, it } from 'vitest';
import { search, searchable } from '../../src/page/search.js';

const conversation = {
  title: 'Ein Café in Köln',
  messages: [
    searchable('u1', 'Where is the CAFÉ that we saw in Köln?'),
    searchable('a1', `It is behind the cathedral. ${'More words follow here. '.repeat(20)}Zürich is not.`),
  ],
};

/** Returns the parts of an excerpt that match. */
function marked(excerpt: { text: string; matches: [number, number][] } | undefined): string[] {
  return excerpt?.matches.map(([start, end]) => excerpt.text.slice(start, end)) ?? [];
}

it('ignores case and accents, in the query and in the text', () => {
  const hit = search(conversation, 'cafe KÖLN');
  expect(hit?.message?.itemId).toBe('u1');
  expect(marked(hit?.message?.excerpt)).toEqual(['CAFÉ', 'Köln']);
  expect(marked(hit?.title)).toEqual(['Café', 'Köln']);
  // a combining accent, which is a character of its own
  expect(marked(search({ title: 'cafe\u0301s', messages: [] }, 'café')?.title)).toEqual(['cafe\u0301']);
});

it('requires all words in the title or in one message', () => {
  expect(search(conversation, 'cafe cathedral')).toBeNull();
  expect(search(conversation, 'cathedral zurich')?.message?.itemId).toBe('a1');
  expect(search(conversation, 'ein')).toMatchObject({ message: null });
  expect(search(conversation, '  ')).toBeNull();
  expect(search(conversation, '.*')).toBeNull();
});

it('shows the part of a long message that contains the first match', () => {
  const excerpt = search(conversation, 'zurich')?.message?.excerpt;
  expect(excerpt?.text).toMatch(/^… .*Zürich is not\.$/);
  expect(excerpt?.text.length).toBeLessThan(120);
  expect(marked(excerpt)).toEqual(['Zürich']);
  const long = search({ title: '', messages: [searchable('x', `needle ${'hay '.repeat(1000)}`)] }, 'needle');
  expect(long?.message?.excerpt.text).toMatch(/^needle hay .* …$/);
  expect(marked(long?.message?.excerpt)).toEqual(['needle']);
});

it('searches five megabytes within a second', () => {
  const text = 'Ünïcödé and plain words, none of which is the one. '.repeat(1000);
  const messages = Array.from({ length: 100 }, (_, i) => searchable(`m${i}`, text));
  messages.push(searchable('last', 'the needle'));
  const begin = performance.now();
  expect(search({ title: 'x', messages }, 'needle')?.message?.itemId).toBe('last');
  expect(performance.now() - begin).toBeLessThan(1000);
});

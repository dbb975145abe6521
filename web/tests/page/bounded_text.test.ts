/** Pieces of long texts, parts of long words, and the bound on marks. */

import { expect, it } from 'vitest';
import { cutPieces, cutWords, elideMarks, PIECE_CHARS_MAX } from '../../src/page/bounded_text.js';

const LINES = 'a line of some words\n'.repeat(2_000);
const WORDS = 'some words without a line '.repeat(2_000);
const FOX = '🦊'.repeat(10_000);

it.each(['', 'short', LINES, WORDS, FOX, `a${'\u0301'.repeat(20_000)}`, '\n'.repeat(20_000), ' '.repeat(9_000)])(
  'cuts a text into pieces that are the text',
  (text) => {
    const pieces = cutPieces(text);
    expect(pieces.join('')).toBe(text);
    for (const piece of pieces) {
      expect(piece.length).toBeLessThanOrEqual(PIECE_CHARS_MAX);
      expect(() => encodeURIComponent(piece)).not.toThrow();
    }
    expect(pieces.length).toBeLessThanOrEqual(1 + (2 * text.length) / PIECE_CHARS_MAX);
  },
);

it('cuts after a line, else between words', () => {
  for (const piece of cutPieces(LINES)) expect(piece === '' || piece.endsWith('words\n')).toBe(true);
  for (const piece of cutPieces(WORDS)) expect(piece).toMatch(/ $/);
});

it('changes only the last piece as a text grows', () => {
  for (const text of [LINES, WORDS, FOX]) {
    let before: string[] = [];
    for (let length = 0; length < text.length; length += 777) {
      const pieces = cutPieces(text.slice(0, length));
      expect(pieces.slice(0, before.length - 1)).toEqual(before.slice(0, -1));
      before = pieces;
    }
  }
});

it('lets a line break within a very long word alone', () => {
  expect(cutWords(WORDS)).toEqual([WORDS]);
  for (const word of ['س'.repeat(1_000), FOX]) {
    const parts = cutWords(word);
    expect(parts.join('')).toBe(word);
    for (const part of parts) expect(Array.from(part).length).toBeLessThanOrEqual(200);
    for (const part of parts) expect(() => encodeURIComponent(part)).not.toThrow();
  }
  expect(cutWords('x'.repeat(200))).toHaveLength(1);
});

it('shows as many marks as any script needs, and no more', () => {
  const ordinary = 'Z̷̢a̴l̵g̶o̸, e\u0301, שָׁלוֹם, नमस्ते, 👩\u200d👩\u200d👧\u200d👦, 👋🏽, ❤\ufe0f';
  expect(elideMarks(ordinary)).toBe(ordinary);
  for (const mark of ['\u0301', '\u20dd', '\u200d', '🏽', '\ufe0f']) {
    expect(elideMarks(`a${mark.repeat(100_000)}b`)).toBe(`a${mark.repeat(32)}…b`);
    expect(elideMarks(`a${mark.repeat(32)}b`)).toBe(`a${mark.repeat(32)}b`);
  }
});

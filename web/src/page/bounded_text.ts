/**
 * Text of others in pieces that a browser lays out in bounded time.
 *
 * The time for a line, a word or a letter with its marks grows with the square of its length in some
 * scripts: 100,000 accents on one letter take a browser 15 s, in which the page does nothing else.
 */

import { h } from './dom.js';

/** Characters of a piece, which is a paragraph of its own. */
export const PIECE_CHARS_MAX = 4_000;
/** Characters of a word that a line can break only where it is longer. */
const WORD_CHARS_MAX = 200;
/** Marks shown on one letter; no script needs ten. */
const MARKS_MAX = 32;
/** Pieces added in one frame. */
const FRAME_PIECES_MAX = 3;

/** What changes the look of the character before it: accents, skin tones, and what joins emoji. */
const MARK = '[\\p{M}\\p{Emoji_Modifier}\\u200c\\u200d]';
const EXCESS_MARKS = new RegExp(`(${MARK}{${MARKS_MAX}})${MARK}+`, 'gu');
const PART_OF_WORD = new RegExp(`\\S{${WORD_CHARS_MAX}}(?=\\S)`, 'gu');

/** Returns the pieces of a text, cut after a line, else between words, else within a word. As the text
 * grows, only the last piece changes and others follow. */
export function cutPieces(text: string): string[] {
  const pieces: string[] = [];
  let start = 0;
  while (text.length - start > PIECE_CHARS_MAX) {
    const end = start + pieceLength(text.slice(start, start + PIECE_CHARS_MAX));
    pieces.push(text.slice(start, end));
    start = end;
  }
  return [...pieces, text.slice(start)];
}

function pieceLength(longest: string): number {
  const lineEnd = longest.lastIndexOf('\n') + 1;
  if (lineEnd > 0) return lineEnd;
  const wordStart = longest.search(/\S+$/);
  if (wordStart > 0) return wordStart;
  return longest.length - (/[\ud800-\udbff]$/.test(longest) ? 1 : 0);
}

/** Returns the text with “…” in place of the marks that are too many on one letter. */
export function elideMarks(text: string): string {
  return text.length > MARKS_MAX ? text.replace(EXCESS_MARKS, '$1…') : text;
}

/** Returns the parts of a text between which a line may break, all in one unless it has a very long word. */
export function cutWords(text: string): string[] {
  if (text.length <= WORD_CHARS_MAX) return [text];
  const parts: string[] = [];
  let start = 0;
  for (const { index, 0: part } of text.matchAll(PART_OF_WORD)) {
    parts.push(text.slice(start, index + part.length));
    start = index + part.length;
  }
  return [...parts, text.slice(start)];
}

/** Returns the nodes that show a text of at most one piece. */
export function textNodes(text: string): (Node | string)[] {
  return cutWords(elideMarks(text)).flatMap((part, index) => (index === 0 ? [part] : [h('wbr'), part]));
}

/** Shows a text that may grow as all that an element has, a few pieces a frame. */
export class BoundedText {
  readonly #element: HTMLElement;
  #pieces: string[] = [];
  readonly #drawn: { piece: string; element: HTMLElement }[] = [];
  #isScheduled = false;

  constructor(element: HTMLElement) {
    this.#element = element;
  }

  show(text: string): void {
    this.#pieces = text === '' ? [] : cutPieces(text);
    if (this.#drawn.some(({ element }) => element.parentNode !== this.#element)) this.clear();
    if (!this.#isScheduled) this.#drawSome();
  }

  /** Remove the text, and all else that was put in its place. */
  clear(): void {
    this.#drawn.length = 0;
    this.#element.replaceChildren();
  }

  #drawSome(): void {
    const same = this.#drawn.findIndex(({ piece }, index) => piece !== this.#pieces[index]);
    for (const { element } of same < 0 ? [] : this.#drawn.splice(same)) element.remove();
    const start = this.#drawn.length;
    for (const piece of this.#pieces.slice(start, start + FRAME_PIECES_MAX)) {
      const element = h('span', { class: 'piece' }, ...textNodes(piece));
      this.#element.append(element);
      this.#drawn.push({ piece, element });
    }
    if (this.#drawn.length === this.#pieces.length) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => {
      this.#isScheduled = false;
      this.#drawSome();
    });
  }
}

/** Full-text search over conversations: case and accents make no difference. Pure. */

export interface SearchableMessage {
  itemId: string;
  text: string;
  /** The text as it is compared. */
  folded: string;
}

export interface SearchableConversation {
  title: string;
  messages: SearchableMessage[];
}

export function searchable(itemId: string, text: string): SearchableMessage {
  return { itemId, text, folded: fold(text) };
}

/** A text with the parts that match, as [start, end) offsets. */
export interface Excerpt {
  text: string;
  matches: [start: number, end: number][];
}

export interface SearchHit {
  title: Excerpt;
  /** The first message that matches; null if only the title does. */
  message: { itemId: string; excerpt: Excerpt } | null;
}

const EXCERPT_BEFORE_CHARS = 24;
const EXCERPT_CHARS = 90;

/** Find a conversation by a query: all its words must occur in the title, or all in one message. Returns
 * null if they do not, or if the query has no words. */
export function search({ title, messages }: SearchableConversation, query: string): SearchHit | null {
  const words = fold(query).split(/\s+/).filter(Boolean);
  if (words.length === 0) return null;
  const titleMatches = words.every((word) => fold(title).includes(word)) ? findWords(title, words) : null;
  const hit = messages.find(({ folded }) => words.every((word) => folded.includes(word)));
  if (!hit && !titleMatches) return null;
  return {
    title: { text: title, matches: titleMatches ?? [] },
    message: hit ? { itemId: hit.itemId, excerpt: excerptOf(hit.text, words) } : null,
  };
}

/** Returns the part of `text` around its first match. */
function excerptOf(text: string, words: string[]): Excerpt {
  const line = text.replace(/\s+/g, ' ').trim();
  const first = findWords(line, words)[0]?.[0] ?? 0;
  const wordStart = line.lastIndexOf(' ', Math.max(0, first - EXCERPT_BEFORE_CHARS)) + 1;
  const start = first > EXCERPT_BEFORE_CHARS ? wordStart : 0;
  const part = (start > 0 ? '… ' : '') + line.slice(start, start + EXCERPT_CHARS);
  const shown = start + EXCERPT_CHARS < line.length ? `${part.trimEnd()} …` : part;
  return { text: shown, matches: findWords(shown, words) };
}

/** Returns the offsets of all occurrences of the words, in order and without overlaps. */
function findWords(text: string, words: string[]): [number, number][] {
  const { folded, offsets } = foldWithOffsets(text);
  const found = words.flatMap((word) => occurrences(folded, word));
  found.sort(([a], [b]) => a - b);
  const separate: [number, number][] = [];
  for (const [start, end] of found) {
    if (start >= (separate.at(-1)?.[1] ?? 0)) separate.push([start, end]);
  }
  return separate.map(([start, end]) => [offsets[start] ?? 0, offsets[end] ?? 0]);
}

function occurrences(folded: string, word: string): [number, number][] {
  const found: [number, number][] = [];
  for (let at = folded.indexOf(word); at >= 0; at = folded.indexOf(word, at + word.length)) {
    found.push([at, at + word.length]);
  }
  return found;
}

/** Returns the text in lower case without accents. */
function fold(text: string): string {
  if (/^[\x00-\x7f]*$/.test(text)) return text.toLowerCase();
  return text.normalize('NFD').replace(/\p{Mark}/gu, '').toLowerCase();
}

/** Returns the folded text, and the offset in the original of each of its units and of its end. */
function foldWithOffsets(text: string): { folded: string; offsets: number[] } {
  let folded = '';
  const offsets: number[] = [];
  let at = 0;
  for (const char of text) {
    const foldedChar = fold(char);
    offsets.push(...Array<number>(foldedChar.length).fill(at));
    folded += foldedChar;
    at += char.length;
  }
  offsets.push(at);
  return { folded, offsets };
}

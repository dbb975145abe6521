/**
 * Syntax of mathematics in Markdown: the delimiters that models write.
 *
 *     $a^2$   \(a^2\)         in a line
 *     $$a^2$$  \[a^2\]        displayed
 *     $$ or \[ on a line of its own begins a block, which ends at a line that ends with $$ or \]
 *
 * A block whose end is missing extends to the end of the text, as a code fence does, so that a line that
 * has been received never changes the block that another line belongs to. A dollar sign beside a space
 * or before a digit is not a delimiter: “from $5 to $10”.
 */

import type { MarkdownIt, StateBlock, StateInline } from 'markdown-it';

/** Longest formula in a paragraph, in characters: bounds the search for a closing delimiter. */
const INLINE_FORMULA_MAX_CHARS = 2000;
/** Delimiters that are tried as the end of a formula; those after them are of other formulas. */
const CLOSING_ATTEMPTS_MAX = 8;

/** Opening and closing delimiters; longer ones first. */
const DELIMITERS: { open: string; close: string; isDisplayed: boolean }[] = [
  { open: '$$', close: '$$', isDisplayed: true },
  { open: '\\[', close: '\\]', isDisplayed: true },
  { open: '\\(', close: '\\)', isDisplayed: false },
  { open: '$', close: '$', isDisplayed: false },
];

export function mathSyntax(markdown: MarkdownIt): void {
  markdown.inline.ruler.before('escape', 'math_inline', parseInlineMath);
  markdown.block.ruler.before('fence', 'math_block', parseMathBlock, {
    alt: ['paragraph', 'reference', 'blockquote', 'list'],
  });
}

/** Add a token `math_inline`, whose markup tells a displayed formula: `$$`. */
function parseInlineMath(state: StateInline, silent: boolean): boolean {
  const { src, pos } = state;
  const delimiter = DELIMITERS.find(({ open }) => src.startsWith(open, pos));
  if (!delimiter) return false;
  const { open, close, isDisplayed } = delimiter;
  const start = pos + open.length;
  const end = findClosing(src.slice(start, start + INLINE_FORMULA_MAX_CHARS), close);
  if (end === null) {
    // Otherwise the second dollar sign would be tried as an opening delimiter of its own.
    if (open !== '$$') return false;
    if (!silent) state.pending += open;
    state.pos = start;
    return true;
  }
  if (!silent) {
    const token = state.push('math_inline', 'math', 0);
    token.markup = isDisplayed ? '$$' : '$';
    token.content = src.slice(start, start + end);
  }
  state.pos = start + end + close.length;
  return true;
}

/** Returns where the formula at the beginning of `text` ends, or null if it is none. */
function findClosing(text: string, close: string): number | null {
  const isDollar = close === '$';
  if (isDollar && /^\s/.test(text)) return null;
  let at = text.indexOf(close);
  for (let attempt = 0; at !== -1 && attempt < CLOSING_ATTEMPTS_MAX; attempt += 1) {
    const isEscaped = close.startsWith('$') && text[at - 1] === '\\';
    const isAmount = isDollar && (/\s/.test(text[at - 1] ?? ' ') || /\d/.test(text[at + 1] ?? ''));
    if (!isEscaped && !isAmount) return text.slice(0, at).trim() ? at : null;
    at = text.indexOf(close, at + 1);
  }
  return null;
}

/** Add a token `math_block`; its markup is empty if the closing delimiter is missing. */
function parseMathBlock(state: StateBlock, startLine: number, endLine: number, silent: boolean): boolean {
  if ((state.sCount[startLine] ?? 0) - state.blkIndent >= 4) return false;
  const line = lineOf(state, startLine);
  const delimiter = DELIMITERS.find(({ open, isDisplayed }) => isDisplayed && line.startsWith(open));
  if (!delimiter) return false;
  const { open, close } = delimiter;
  const rest = line.slice(open.length);
  if (rest) {
    const isOneLine = rest.length > close.length && rest.indexOf(close) === rest.length - close.length;
    if (!isOneLine) return false;
    if (!silent) pushBlock(state, startLine, startLine + 1, rest.slice(0, -close.length), close);
    return true;
  }
  if (silent) return true;
  for (let next = startLine + 1; next < endLine; next += 1) {
    const text = lineOf(state, next);
    // A line with less indentation ends the list item or quotation around the block.
    const isOutside = text !== '' && (state.sCount[next] ?? 0) < state.blkIndent;
    if (!isOutside && !text.endsWith(close)) continue;
    const lines = state.getLines(startLine + 1, next, state.blkIndent, false);
    if (isOutside) pushBlock(state, startLine, next, lines, '');
    else pushBlock(state, startLine, next + 1, `${lines}\n${text.slice(0, -close.length)}`, close);
    return true;
  }
  pushBlock(state, startLine, endLine, state.getLines(startLine + 1, endLine, state.blkIndent, false), '');
  return true;
}

function pushBlock(state: StateBlock, start: number, end: number, content: string, markup: string): void {
  const token = state.push('math_block', 'math', 0);
  token.block = true;
  token.content = content;
  token.markup = markup;
  token.map = [start, end];
  state.line = end;
}

/** Returns a line without the indentation and the space at its end. */
function lineOf(state: StateBlock, line: number): string {
  const start = (state.bMarks[line] ?? 0) + (state.tShift[line] ?? 0);
  return state.src.slice(start, state.eMarks[line]).trimEnd();
}

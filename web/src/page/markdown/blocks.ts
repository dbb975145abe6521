/**
 * Blocks of Markdown text that grows: what a streamed response consists of, without any HTML.
 *
 * A block that another one follows cannot change any more, whatever is appended, if two further lines are
 * complete: a table, for one, is recognised by its second line. Only the text after the last such block
 * is parsed again, so that the cost does not grow with the text.
 */

import createMarkdownIt, { type Env, type MarkdownIt, type Token } from 'markdown-it';
import { cutPieces, PIECE_CHARS_MAX } from '../bounded_text.js';
import { mathSyntax } from './math_syntax.js';

export type TextKind = 'p' | 'h3' | 'h4' | 'h5' | 'h6' | 'th' | 'td';
export type ContainerKind = 'ul' | 'ol' | 'li' | 'blockquote' | 'table' | 'thead' | 'tbody' | 'tr';

export type Block =
  /** Text with emphasis, links and the like; `source` is its Markdown. */
  | { kind: TextKind; source: string; isTight: boolean; align: Align | null }
  | { kind: ContainerKind; children: Block[]; start: number | null; task: Task | null }
  | { kind: 'code'; source: string; language: string }
  | { kind: 'math'; source: string; isClosed: boolean }
  /** Text that is shown as it is, because it is nested too deeply or is too wide a table. */
  | { kind: 'plain'; source: string }
  | { kind: 'hr' };

export type Align = 'left' | 'center' | 'right';
export type Task = 'open' | 'done';

/** Beyond these, the source is shown: browsers lay out such elements slowly, or not at all. */
const NESTING_MAX = 60;
const TABLE_COLUMNS_MAX = 60;
const TABLE_CELLS_MAX = 20_000;

/** Schemes of links. All others, and links relative to this page, remain text. */
const LINK = /^(https?:\/\/|mailto:)/i;

/** Definitions of links: `[label]: https://…`. */
type References = NonNullable<Env['references']>;

function createParser(): MarkdownIt {
  const markdown = createMarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: 100 });
  // “README.md” and “main.rs” are file names, not addresses.
  markdown.linkify.set({ fuzzyLink: false });
  markdown.validateLink = (url) => LINK.test(url.trim());
  return markdown.use(mathSyntax);
}

const inlineParser = createParser();
const blockParser = createParser();
blockParser.core.ruler.enableOnly(['normalize', 'block']);

export class GrowingMarkdown {
  #references: References = {};
  #closedEnd = 0;
  /** Level of the first heading. */
  #topLevel: number | null = null;

  /**
   * Parse the text, of which the part that was parsed before has not changed. Returns the blocks that
   * have become final, and after them those that may still change; none if `isComplete`.
   */
  parse(text: string, isComplete: boolean): { closed: Block[]; open: Block[]; hasNewReferences: boolean } {
    const start = this.#closedEnd;
    const end = isComplete ? text.length : start + lastBlockStart(text.slice(start), this.#references);
    this.#closedEnd = end;
    const before = Object.keys(this.#references).length;
    const closed = this.#parseBlocks(text.slice(start, end), this.#references);
    const topLevel = this.#topLevel;
    // What the text defines may still change, and is not stored.
    const open = this.#parseBlocks(text.slice(end), Object.create(this.#references) as References);
    this.#topLevel = topLevel;
    return { closed, open, hasNewReferences: Object.keys(this.#references).length > before };
  }

  /** Parse the text of a block. */
  parseInline(source: string): Token[] {
    return inlineParser.parseInline(source, { references: this.#references })[0]?.children ?? [];
  }

  #parseBlocks(text: string, references: References): Block[] {
    const tokens = blockParser.parse(text, { references });
    this.#topLevel ??= Number(tokens.find(({ type }) => type === 'heading_open')?.tag[1] ?? 0) || null;
    return new BlockReader(tokens, text, this.#topLevel ?? 1).read();
  }
}

/** Returns where the last block begins, if two lines from there are complete; otherwise the one before. */
function lastBlockStart(text: string, references: References): number {
  const env = { references: Object.create(references) as References };
  const lines = lineStarts(text);
  const isStart = ({ level, nesting, map }: Token): boolean =>
    level === 0 && nesting >= 0 && map !== null && map[0] + 2 < lines.length;
  const last = blockParser.parse(text, env).findLast(isStart);
  return lines[last?.map?.[0] ?? 0] ?? 0;
}

function lineStarts(text: string): number[] {
  const starts = [0];
  for (let at = text.indexOf('\n'); at !== -1; at = text.indexOf('\n', at + 1)) starts.push(at + 1);
  return starts;
}

/** Reads the parser's list of tokens as a tree. */
class BlockReader {
  readonly #tokens: Token[];
  readonly #text: string;
  readonly #topLevel: number;
  #next = 0;

  constructor(tokens: Token[], text: string, topLevel: number) {
    this.#tokens = tokens;
    this.#text = text;
    this.#topLevel = topLevel;
  }

  /** Returns the blocks up to the end of the one around them. */
  read(): Block[] {
    const blocks: Block[] = [];
    for (;;) {
      const token = this.#tokens[this.#next++];
      if (!token || token.nesting < 0) return blocks;
      blocks.push(...(this.#isUnsuitable(token) ? [this.#readSource(token)] : this.#readBlocks(token)));
    }
  }

  /** Returns a block; a longer text than a piece is several. */
  #readBlocks(token: Token): Block[] {
    const { type, tag, content, info } = token;
    switch (type) {
      case 'fence':
        return info.trim() === 'math'
          ? [{ kind: 'math', source: content, isClosed: true }]
          : [{ kind: 'code', source: content, language: /^\S*/.exec(info.trim())?.[0] ?? '' }];
      case 'code_block':
        return [{ kind: 'code', source: content, language: '' }];
      case 'math_block':
        return [{ kind: 'math', source: content.trim(), isClosed: token.markup !== '' }];
      case 'hr':
        return [{ kind: 'hr' }];
      case 'paragraph_open':
        return this.#readTexts('p', token);
      case 'th_open':
      case 'td_open':
        return this.#readTexts(tag as TextKind, token);
      case 'heading_open':
        return this.#readTexts(this.#headingOf(Number(tag[1])), token);
      case 'list_item_open':
        return [readTask(this.read())];
      default:
        if (token.nesting === 0) return [];
        return [this.#readContainer(tag as ContainerKind, token)];
    }
  }

  /** Returns the element of a heading: the first one is of level 3, below those of the page. */
  #headingOf(level: number): TextKind {
    return `h${Math.max(3, Math.min(6, level - this.#topLevel + 3))}` as TextKind;
  }

  #readContainer(kind: ContainerKind, token: Token): Block {
    const start = token.attrGet('start');
    return { kind, children: this.read(), start: start === null ? null : Number(start), task: null };
  }

  #readTexts(kind: TextKind, token: Token): Block[] {
    const text = this.#tokens[this.#next]?.content ?? '';
    this.#next += 2;
    const align = /\b(left|center|right)\b/.exec(String(token.attrGet('style') ?? ''));
    const style = { isTight: token.hidden, align: (align?.[1] ?? null) as Align | null };
    return cutPieces(text).map((source) => ({ kind, source, ...style }));
  }

  /** Whether a table, or an outermost block, is shown as its source. */
  #isUnsuitable({ type, nesting, level }: Token): boolean {
    if (nesting <= 0 || (level > 0 && type !== 'table_open')) return false;
    const inner = this.#tokens.slice(this.#next, this.#endOf(level));
    if (inner.some((token) => token.level > NESTING_MAX)) return true;
    if (type !== 'table_open') return false;
    if (inner.some(({ type, content }) => type === 'inline' && content.length > PIECE_CHARS_MAX)) return true;
    const cells = inner.filter((token) => token.nesting > 0 && /^t[hd]$/.test(token.tag)).length;
    const rows = inner.filter((token) => token.type === 'tr_open').length;
    return cells > TABLE_CELLS_MAX || cells / rows > TABLE_COLUMNS_MAX;
  }

  #readSource(token: Token): Block {
    this.#next = this.#endOf(token.level) + 1;
    const [first = 0, end = 0] = token.map ?? [];
    return { kind: 'plain', source: this.#text.split('\n').slice(first, end).join('\n') };
  }

  /** Returns the index of the token that closes the block just begun, which is of `level`. */
  #endOf(level: number): number {
    let index = this.#next;
    while (this.#tokens[index] && this.#tokens[index]?.level !== level) index += 1;
    return index;
  }
}

/** Returns a list item; one that begins with `[ ]` or `[x]` is a task. */
function readTask(children: Block[]): Block {
  const [first, ...rest] = children;
  const mark = first?.kind === 'p' ? /^\[([ xX])\](?:\s+|$)/.exec(first.source) : null;
  if (first?.kind !== 'p' || !mark) return { kind: 'li', children, start: null, task: null };
  const label: Block = { ...first, source: first.source.slice(mark[0].length) };
  const task = mark[1] === ' ' ? 'open' : 'done';
  return { kind: 'li', children: [label, ...rest], start: null, task };
}

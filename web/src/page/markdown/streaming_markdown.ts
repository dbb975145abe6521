/**
 * Streamed Markdown as elements of the page.
 *
 * Elements are created one by one, of the kinds and with the attributes named here; no HTML is parsed, so
 * there is none to sanitize, and nothing is loaded from another server: images are links. A block is
 * changed in place as it grows, so that a selection or the scroll position of a table remains.
 */

import type { Token } from 'markdown-it';
import { BoundedText, textNodes } from '../bounded_text.js';
import { h, icon } from '../dom.js';
import { type Block, type Task, type TextKind, GrowingMarkdown } from './blocks.js';
import { CodeView } from './code_view.js';
import './markdown.css';
import { mathElement } from './math_view.js';

/** Text that is added in one frame; what is longer, such as a stored response, takes several. */
const FRAME_MAX_CHARS = 12_000;
/** Share of the time that is spent on drawing if a block is so long that drawing it is slow. */
const DRAWING_TIME_SHARE = 0.2;
const FRAME_MS = 16;

type Parser = GrowingMarkdown;

/** Element of one block, which follows the block's changes. */
interface BlockView {
  readonly kind: Block['kind'];
  readonly element: HTMLElement;
  update(block: Block, isOpen: boolean): void;
  /** Draw the links again whose address has been defined. */
  refresh(): void;
}

export class StreamingMarkdown {
  readonly #container: HTMLElement;
  #parser = new GrowingMarkdown();
  #views: BlockView[] = [];
  /** Number of views whose blocks are final. */
  #closedCount = 0;
  /** Text that is to be drawn, and the part of it that is. */
  #text = '';
  #drawnText = '';
  #isComplete = false;
  #isScheduled = false;
  /** When the next part may be drawn. */
  #drawAfter = 0;

  constructor(container: HTMLElement) {
    this.#container = container;
  }

  /** Render the current text; `isComplete` if nothing follows. */
  draw(text: string, isComplete: boolean): void {
    if (this.#isComplete || !text.startsWith(this.#drawnText)) this.#reset();
    this.#text = text;
    this.#isComplete = isComplete;
    if (isComplete) this.#drawAfter = 0;
    if (!this.#isScheduled) this.#drawPart();
  }

  #reset(): void {
    this.#parser = new GrowingMarkdown();
    this.#views = [];
    this.#closedCount = 0;
    this.#drawnText = '';
    this.#container.replaceChildren();
  }

  #drawPart(): void {
    const startedAt = performance.now();
    if (startedAt >= this.#drawAfter) {
      const end = this.#drawnText.length + FRAME_MAX_CHARS;
      const isLastPart = end >= this.#text.length;
      this.#drawBlocks(isLastPart ? this.#text : this.#text.slice(0, end), this.#isComplete && isLastPart);
      const elapsed_ms = performance.now() - startedAt;
      this.#drawAfter = elapsed_ms > FRAME_MS / 2 ? startedAt + elapsed_ms / DRAWING_TIME_SHARE : 0;
    }
    if (this.#drawnText.length === this.#text.length) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => {
      this.#isScheduled = false;
      this.#drawPart();
    });
  }

  #drawBlocks(text: string, isComplete: boolean): void {
    this.#drawnText = text;
    const { closed, open, hasNewReferences } = this.#parser.parse(text, isComplete);
    const finished = this.#views.slice(0, this.#closedCount);
    if (hasNewReferences) for (const view of finished) view.refresh();
    const growing = this.#views.slice(this.#closedCount);
    updateViews(this.#container, growing, [...closed, ...open], this.#parser, !isComplete);
    this.#views = [...finished, ...growing];
    this.#closedCount += closed.length;
  }
}

/** Change the views at the end of a container to show `blocks`; the last one may still grow if `isOpen`. */
function updateViews(
  container: HTMLElement,
  views: BlockView[],
  blocks: Block[],
  parser: Parser,
  isOpen: boolean,
): void {
  for (const view of views.splice(blocks.length)) view.element.remove();
  blocks.forEach((block, index) => {
    const isLast = index === blocks.length - 1;
    const existing = views[index];
    const view = existing?.kind === block.kind ? existing : createView(block, parser);
    view.update(block, isOpen && isLast);
    if (view === existing) return;
    if (existing) existing.element.replaceWith(view.element);
    else container.append(view.element);
    views[index] = view;
  });
}

function createView(block: Block, parser: Parser): BlockView {
  switch (block.kind) {
    case 'code':
      return new CodeView();
    case 'math':
      return new MathBlockView();
    case 'plain':
      return new PlainView();
    case 'hr':
      return { kind: 'hr', element: h('hr'), update: () => undefined, refresh: () => undefined };
    case 'ul':
    case 'ol':
    case 'li':
    case 'blockquote':
    case 'table':
    case 'thead':
    case 'tbody':
    case 'tr':
      return new ContainerView(block.kind, parser);
    default:
      return new TextView(block.kind, parser);
  }
}

class ContainerView implements BlockView {
  readonly kind: Extract<Block, { children: unknown }>['kind'];
  readonly element: HTMLElement;
  readonly #inner: HTMLElement;
  readonly #views: BlockView[] = [];
  readonly #parser: Parser;
  #checkbox: HTMLInputElement | null = null;

  constructor(kind: ContainerView['kind'], parser: Parser) {
    this.kind = kind;
    this.#parser = parser;
    this.#inner = h(kind);
    this.element =
      kind === 'table'
        ? h('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' }, this.#inner)
        : this.#inner;
  }

  update(block: Block, isOpen: boolean): void {
    if (!('children' in block)) return;
    if (block.start !== null) this.#inner.setAttribute('start', String(block.start));
    this.#drawTask(block.task);
    updateViews(this.#inner, this.#views, block.children, this.#parser, isOpen);
  }

  refresh(): void {
    for (const view of this.#views) view.refresh();
  }

  #drawTask(task: Task | null): void {
    this.#inner.classList.toggle('task', task !== null);
    if (task === null) {
      this.#checkbox?.remove();
      this.#checkbox = null;
      return;
    }
    if (!this.#checkbox) {
      this.#checkbox = h('input', { type: 'checkbox', disabled: true });
      this.#inner.prepend(this.#checkbox);
    }
    this.#checkbox.checked = task === 'done';
    this.#checkbox.setAttribute('aria-label', task === 'done' ? 'Done' : 'To do');
  }
}

class TextView implements BlockView {
  readonly kind: TextKind;
  readonly element: HTMLElement;
  readonly #parser: Parser;
  #source: string | null = null;

  constructor(kind: TextKind, parser: Parser) {
    this.kind = kind;
    this.#parser = parser;
    this.element = h(kind, { scope: kind === 'th' && 'col' });
  }

  update(block: Block): void {
    if (!('isTight' in block)) return;
    this.element.classList.toggle('tight', block.isTight);
    if (block.align) this.element.dataset.align = block.align;
    if (block.source === this.#source) return;
    this.#source = block.source;
    this.#draw(block.source);
  }

  refresh(): void {
    if (this.#source?.includes('[')) this.#draw(this.#source);
  }

  #draw(source: string): void {
    this.element.replaceChildren(inlineNodes(this.#parser.parseInline(source), this.kind === 'td'));
  }
}

class PlainView implements BlockView {
  readonly kind = 'plain';
  readonly element = h('pre', { class: 'plain', tabindex: '0', 'aria-label': 'Source' });
  readonly #text = new BoundedText(this.element);

  update(block: Block): void {
    if (block.kind === 'plain') this.#text.show(block.source);
  }

  refresh(): void {
    // The source has no links.
  }
}

class MathBlockView implements BlockView {
  readonly kind = 'math';
  readonly element = h('div', { class: 'math-block' });
  #drawn = '';

  /** Show the formula, or its source until that is complete. */
  update(block: Block, isOpen: boolean): void {
    if (block.kind !== 'math') return;
    const isComplete = block.isClosed || !isOpen;
    const key = `${String(isComplete)}${block.source}`;
    if (key === this.#drawn) return;
    this.#drawn = key;
    this.element.replaceChildren(isComplete ? mathElement(block.source, true) : h('code', {}, ...textNodes(block.source)));
  }

  refresh(): void {
    // A formula has no links.
  }
}

const EMPHASIS: Partial<Record<string, 'em' | 'strong' | 's'>> = {
  em_open: 'em',
  strong_open: 'strong',
  s_open: 's',
};

/** Returns the nodes of a block's text; in a table cell, which is narrow, no word is broken at a hyphen. */
function inlineNodes(tokens: Token[], isCell: boolean): DocumentFragment {
  const fragment = document.createDocumentFragment();
  const open: (DocumentFragment | HTMLElement)[] = [fragment];
  for (const token of tokens) {
    const parent = open.at(-1) ?? fragment;
    const emphasis = EMPHASIS[token.type];
    if (token.nesting < 0) open.pop();
    else if (emphasis || token.type === 'link_open') {
      const element = emphasis ? h(emphasis) : linkElement(String(token.attrGet('href') ?? ''));
      parent.append(element);
      open.push(element);
    } else if (token.type === 'image') {
      const isLinked = open.some((element) => element instanceof HTMLAnchorElement);
      parent.append(imageElement(token, isLinked));
    } else if (isCell && token.type === 'text') parent.append(...unbrokenWords(token.content));
    else parent.append(...inlineNodesOf(token));
  }
  return fragment;
}

/** A word of at most 40 characters within which browsers would break a line, such as “Qwen2.5-7B-Instruct”. */
const BREAKABLE_WORD = /(?<![!-~])(?=[!-~]{0,39}[-/?][!-~])[!-~]{1,40}(?![!-~])/g;

function unbrokenWords(text: string): (Node | string)[] {
  const parts: (Node | string)[] = [];
  let at = 0;
  for (const { index, 0: word } of text.matchAll(BREAKABLE_WORD)) {
    parts.push(...textNodes(text.slice(at, index)), h('span', { class: 'unbroken' }, word));
    at = index + word.length;
  }
  return [...parts, ...textNodes(text.slice(at))];
}

function inlineNodesOf(token: Token): (Node | string)[] {
  switch (token.type) {
    case 'code_inline':
      return [h('code', {}, ...textNodes(token.content))];
    case 'softbreak':
    case 'hardbreak':
      return [h('br')];
    case 'math_inline':
      return [mathElement(token.content, token.markup === '$$')];
    default:
      return textNodes(token.content);
  }
}

function linkElement(url: string): HTMLAnchorElement {
  return h('a', { href: url, title: url, target: '_blank', rel: 'noopener noreferrer nofollow' });
}

/** Returns a link to an image: loading it would tell its server who reads what. */
function imageElement(token: Token, isLinked: boolean): HTMLElement {
  const url = String(token.attrGet('src') ?? '');
  const element = isLinked ? h('span') : linkElement(url);
  element.classList.add('image');
  element.append(icon('image'), ...textNodes(token.content.trim() || 'Image'));
  return element;
}

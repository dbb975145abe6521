/** Block of code with its language, a button that copies it, and colors once the highlighter is loaded. */

import { BoundedText } from '../bounded_text.js';
import { copyText, flashCheckMark, h, iconButton } from '../dom.js';
import type { Block } from './blocks.js';

/** Longer code has no colors: highlighting it would block the page. */
const HIGHLIGHT_MAX_CHARS = 20_000;
/** Growing code is highlighted again after this multiple of the time that it took before. */
const HIGHLIGHT_DELAY_FACTOR = 10;
const HIGHLIGHT_DELAY_MIN_MS = 60;

export class CodeView {
  readonly kind = 'code';
  readonly element: HTMLElement;
  readonly #label = h('span', { class: 'language' });
  /** The part that has colors, and what has been added since. */
  readonly #colored = h('span');
  readonly #added = h('span');
  readonly #addedText = new BoundedText(this.#added);
  #coloredChars = 0;
  #source = '';
  #language = '';
  #isScheduled = false;
  #delay_ms = 0;

  constructor() {
    const copyButton = iconButton('copy', 'Copy code', () => void this.#copy(copyButton), 'Copy');
    copyButton.classList.add('copy-code');
    const head = h('div', { class: 'code-head' }, this.#label, copyButton);
    const pre = h('pre', { tabindex: '0', role: 'region', 'aria-label': 'Code' }, h('code', {}, this.#colored, this.#added));
    this.element = h('div', { class: 'code-block' }, head, pre);
  }

  update(block: Block): void {
    if (block.kind !== 'code') return;
    const { source, language } = block;
    if (language !== this.#language) {
      this.#language = language;
      this.#label.textContent = language;
    } else if (source === this.#source) return;
    if (!source.startsWith(this.#source) || source.length > HIGHLIGHT_MAX_CHARS) {
      this.#coloredChars = 0;
      this.#colored.replaceChildren();
    }
    this.#source = source;
    this.#addedText.show(source.slice(this.#coloredChars));
    this.#scheduleHighlight();
  }

  refresh(): void {
    // Code has no links.
  }

  async #copy(button: HTMLElement): Promise<void> {
    await copyText(this.#source.replace(/\n$/, ''));
    flashCheckMark(button);
  }

  #scheduleHighlight(): void {
    if (this.#isScheduled || !this.#language || this.#source.length > HIGHLIGHT_MAX_CHARS) return;
    this.#isScheduled = true;
    setTimeout(() => void this.#highlight(), this.#delay_ms);
  }

  async #highlight(): Promise<void> {
    const { highlight } = await import('./highlight.js').catch(() => ({ highlight: () => null }));
    await whenIdle();
    this.#isScheduled = false;
    if (!this.element.isConnected || this.#source.length > HIGHLIGHT_MAX_CHARS) return;
    const startedAt = performance.now();
    const highlighted = highlight(this.#source, this.#language);
    if (highlighted) {
      this.#colored.replaceChildren(highlighted);
      this.#coloredChars = this.#source.length;
      this.#addedText.show('');
    }
    const elapsed_ms = performance.now() - startedAt;
    this.#delay_ms = Math.max(HIGHLIGHT_DELAY_MIN_MS, elapsed_ms * HIGHLIGHT_DELAY_FACTOR);
  }
}

/** Wait until the browser has time; Safari does not tell. */
function whenIdle(): Promise<unknown> {
  return new Promise((resolve) => {
    if ('requestIdleCallback' in window) requestIdleCallback(resolve, { timeout: 500 });
    else setTimeout(resolve, 1);
  });
}

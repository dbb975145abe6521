/** What the model writes, as safe elements: Markdown without raw HTML, sanitised all the same. */

import DOMPurify from 'dompurify';
import MarkdownIt from 'markdown-it';

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: true });

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName !== 'A') return;
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer nofollow');
});

function render(text: string): DocumentFragment {
  return DOMPurify.sanitize(markdown.render(text), {
    RETURN_DOM_FRAGMENT: true,
    FORBID_TAGS: ['style', 'img', 'form', 'input'],
    FORBID_ATTR: ['style', 'class'],
  });
}

/**
 * A text that grows. Blocks that a blank line has ended are drawn once; only the last one is drawn
 * again with every piece, so that a long answer costs no more than a short one.
 */
export class Growing {
  readonly #into: HTMLElement;
  readonly #open = document.createElement('div');
  #text = '';
  /** Characters that are drawn for good. */
  #settled = 0;

  constructor(into: HTMLElement) {
    this.#into = into;
    this.#open.className = 'open-block';
  }

  /** Draws the text as it is now; `done` when nothing follows. */
  draw(text: string, done: boolean): void {
    if (done || !text.startsWith(this.#text)) {
      this.#settled = 0;
      this.#into.replaceChildren();
    }
    this.#text = text;
    if (done) {
      this.#into.replaceChildren(render(text));
      return;
    }
    const border = lastBorder(text);
    if (border > this.#settled) {
      const block = render(text.slice(this.#settled, border));
      if (this.#open.parentNode === this.#into) this.#open.before(block);
      else this.#into.append(block);
      this.#settled = border;
    }
    this.#open.replaceChildren(render(text.slice(this.#settled)));
    this.#into.append(this.#open);
  }
}

/** Where the last block begins that may still change: behind a blank line outside of fences, before
 * a line that cannot belong to what stands above it. */
function lastBorder(text: string): number {
  let border = 0;
  let fenced = false;
  for (const match of text.matchAll(/^(```|~~~)|\n\n(?=[^\s\-*+>\d|])/gm)) {
    if (match[1] !== undefined) fenced = !fenced;
    else if (!fenced) border = match.index + match[0].length;
  }
  return border;
}

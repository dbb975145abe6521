/** Rendering of the model's Markdown as safe HTML elements: raw HTML is disabled, and the output is
 * sanitized as well. */

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
 * Incremental rendering of streamed Markdown. Blocks ended by a blank line are rendered once; only the
 * last block is rendered again for each delta, so that the cost does not grow with the text.
 */
export class StreamingMarkdown {
  readonly #container: HTMLElement;
  readonly #openBlock = document.createElement('div');
  #text = '';
  /** Characters whose rendering is final. */
  #renderedEnd = 0;

  constructor(container: HTMLElement) {
    this.#container = container;
    this.#openBlock.className = 'open-block';
  }

  /** Render the current text; `isComplete` if nothing follows. */
  draw(text: string, isComplete: boolean): void {
    if (isComplete || !text.startsWith(this.#text)) {
      this.#renderedEnd = 0;
      this.#container.replaceChildren();
    }
    this.#text = text;
    if (isComplete) {
      this.#container.replaceChildren(render(text));
      return;
    }
    const blockStart = lastBlockStart(text);
    if (blockStart > this.#renderedEnd) {
      const block = render(text.slice(this.#renderedEnd, blockStart));
      if (this.#openBlock.parentNode === this.#container) this.#openBlock.before(block);
      else this.#container.append(block);
      this.#renderedEnd = blockStart;
    }
    this.#openBlock.replaceChildren(render(text.slice(this.#renderedEnd)));
    this.#container.append(this.#openBlock);
  }
}

/** Returns where the last block that may still change begins: after a blank line outside code fences,
 * before a line that cannot continue the block above. */
function lastBlockStart(text: string): number {
  let blockStart = 0;
  let fenced = false;
  for (const match of text.matchAll(/^(```|~~~)|\n\n(?=[^\s\-*+>\d|])/gm)) {
    if (match[1] !== undefined) fenced = !fenced;
    else if (!fenced) blockStart = match.index + match[0].length;
  }
  return blockStart;
}

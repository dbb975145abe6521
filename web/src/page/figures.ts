/** Figures of the server that both pages show. */

import type { EngineBooks } from './api.js';
import { h } from './dom.js';
import { count } from './words.js';

export function facts(list: HTMLElement, rows: [string, string][]): void {
  list.replaceChildren(
    ...rows.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))),
  );
}

/** One bar: pages held by conversations, pages kept to be shared, and the rest. */
export function drawPages(into: HTMLElement, pages: EngineBooks): void {
  const { pages_total, pages_tree, pages_leased } = pages;
  const bar = (kind: string, n: number): HTMLElement => {
    const element = h('span', { class: kind });
    element.style.width = `${(100 * n) / pages_total}%`;
    return element;
  };
  into.replaceChildren(bar('leased', pages_leased), bar('tree', pages_tree));
  const words = `Pages: ${count(pages_leased)} held, ${count(pages_tree)} kept to be shared`;
  into.setAttribute('aria-label', words);
  into.title = words;
}

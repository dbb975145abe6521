/** Figures of the server that both pages show. */

import type { EngineBooks, SessionKV } from './api.js';
import { h } from './dom.js';
import { count } from './format.js';

/** A name, what is so called, and the colour of it in the bar above if it has one. */
type Fact = [name: string, value: string, color?: Color];
type Color = 'accent' | 'second' | 'lost';

export function facts(list: HTMLElement, rows: Fact[]): void {
  list.replaceChildren(
    ...rows.map(([name, value, color]) => {
      const term = color === undefined ? h('dt', {}, name) : h('dt', { class: `key ${color}` }, name);
      return h('div', {}, term, h('dd', {}, value));
    }),
  );
}

/** Pages held by conversations, pages kept to be shared, and the rest. */
export function drawPages(bar: HTMLElement, pages: EngineBooks): void {
  const { pages_total, pages_tree, pages_leased } = pages;
  fill(bar, pages_total, { accent: pages_leased, second: pages_tree });
  say(bar, `Pages: ${count(pages_leased)} held, ${count(pages_tree)} kept to be shared`);
}

/** Tokens of one conversation, `whole` in all, by where their KV is. */
export function drawKV(bar: HTMLElement, kv: SessionKV, whole: number): void {
  fill(bar, whole, { accent: kv.tokens, second: kv.host_tokens, lost: kv.lost_tokens });
  const words = [`${count(kv.tokens)} on the device`, `${count(kv.host_tokens)} in host memory`];
  say(bar, `Tokens: ${words.join(', ')}, ${count(kv.lost_tokens)} to be computed again`);
}

function fill(bar: HTMLElement, whole: number, parts: Partial<Record<Color, number>>): void {
  bar.replaceChildren(
    ...Object.entries(parts).map(([color, n]) => {
      const part = h('span', { class: color });
      part.style.width = `${whole > 0 ? (100 * n) / whole : 0}%`;
      return part;
    }),
  );
}

function say(bar: HTMLElement, words: string): void {
  bar.setAttribute('aria-label', words);
  bar.title = words;
}

/** KV usage bars and lists of statistics, used by both pages. */

import type { EngineStats, SessionKV } from './api.js';
import { h } from './dom.js';
import { formatCount } from './format.js';

/** A name, its value, and the color of its segment in the bar above, if any. */
type Stat = [name: string, value: string, color?: Color];
/** Each color has one meaning on the whole page. */
type Color = 'device' | 'host' | 'lost' | 'leased' | 'shared';

export function drawStats(list: HTMLElement, rows: Stat[]): void {
  list.replaceChildren(
    ...rows.map(([name, value, color]) => {
      const term = color === undefined ? h('dt', {}, name) : h('dt', { class: `key ${color}` }, name);
      return h('div', {}, term, h('dd', {}, value));
    }),
  );
}

/** Draw the engine's pages: leased by sessions, cached for sharing, and free. */
export function drawPageBar(bar: HTMLElement, pages: EngineStats): void {
  const { pages_total, pages_tree, pages_leased } = pages;
  drawSegments(bar, pages_total, { leased: pages_leased, shared: pages_tree });
  const [leased, cached] = [formatCount(pages_leased), formatCount(pages_tree)];
  setLabel(bar, `Pages: ${leased} leased, ${cached} cached for sharing`);
}

/** Draw the `total` tokens of a conversation by where their KV is. */
export function drawTokenBar(bar: HTMLElement, kv: SessionKV, total: number): void {
  drawSegments(bar, total, { device: kv.tokens, host: kv.host_tokens, lost: kv.lost_tokens });
  const [device, host, lost] = [kv.tokens, kv.host_tokens, kv.lost_tokens].map(formatCount);
  setLabel(bar, `Tokens: ${device} on the device, ${host} in host memory, ${lost} to be recomputed`);
}

function drawSegments(bar: HTMLElement, total: number, segments: Partial<Record<Color, number>>): void {
  bar.replaceChildren(
    ...Object.entries(segments).map(([color, n]) => {
      const segment = h('span', { class: color });
      segment.style.width = `${total > 0 ? (100 * n) / total : 0}%`;
      return segment;
    }),
  );
}

function setLabel(bar: HTMLElement, label: string): void {
  bar.setAttribute('aria-label', label);
  bar.title = label;
}

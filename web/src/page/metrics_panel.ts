/** What happens behind the conversation: latency, tokens, KV, the server, the events. */

import { type ServerStats, session, type SessionStatus, stats } from './api.js';
import { Charts } from './charts.js';
import { h } from './dom.js';
import { EventLog } from './event_log.js';
import { drawKV, drawPages, facts } from './kv_bars.js';
import type { Talk } from './conversation_controller.js';
import { count, WHERE } from './format.js';

const POLL_MS = 2000;

export class Panel {
  readonly element: HTMLElement;
  readonly #talk: Talk;
  readonly #charts = new Charts();
  readonly #where = h('div', { class: 'bar kv', role: 'img', hidden: true });
  readonly #kv = h('dl', { class: 'facts' });
  readonly #server = h('dl', { class: 'facts' });
  readonly #pages = h('div', { class: 'bar pages', role: 'img' });
  readonly #polling: ReturnType<typeof setInterval>;

  constructor(talk: Talk) {
    this.#talk = talk;
    this.element = h(
      'aside',
      { class: 'panel', 'aria-label': 'Live figures' },
      this.#charts.element,
      h('section', {}, h('h3', {}, 'This conversation’s KV'), this.#where, this.#kv),
      h('section', {}, h('h3', {}, 'Server'), this.#pages, this.#server),
      new EventLog(talk).element,
    );
    talk.onMetrics = () => {
      this.draw();
      void this.#poll();
    };
    this.#polling = setInterval(() => {
      if (document.visibilityState === 'visible' && this.#shown) void this.#poll();
    }, POLL_MS);
  }

  get #shown(): boolean {
    return this.element.isConnected && this.element.clientWidth > 0;
  }

  draw(): void {
    if (!this.#shown) return;
    this.#charts.draw(this.#talk.kept.metrics);
  }

  /** When it has become visible, or the colours have changed. */
  rebuild(): void {
    this.#charts.rebuild();
    this.draw();
    void this.#poll();
  }

  stop(): void {
    clearInterval(this.#polling);
  }

  async #poll(): Promise<void> {
    const id = this.#talk.client.position?.sessionId;
    const nothing = (): null => null;
    const [books, own] = await Promise.all([
      stats().catch(nothing),
      id === undefined ? null : session(id).catch(nothing),
    ]);
    this.#drawKV(own);
    this.#drawServer(books);
  }

  #drawKV(own: SessionStatus | null): void {
    const last = this.#talk.kept.metrics.at(-1)?.residency;
    const where = last ? WHERE[last] : '–';
    this.#where.hidden = own === null;
    if (!own) {
      facts(this.#kv, [['At the last turn', where]]);
      return;
    }
    const { kv } = own;
    // An answer that is being made is counted there first.
    const whole = Math.max(kv.tokens + kv.host_tokens + kv.lost_tokens, own.tokens);
    const some = (n: number): string => (n > 0 ? `${count(n)} tokens` : 'none');
    drawKV(this.#where, kv, whole);
    facts(this.#kv, [
      ['At the last turn', where],
      ['On the device', `${count(kv.tokens)} of ${count(whole)} tokens`, 'accent'],
      ['In host memory', some(kv.host_tokens), 'second'],
      ['To be computed again', some(kv.lost_tokens), 'lost'],
      ['Pages', count(kv.pages)],
    ]);
  }

  #drawServer(books: ServerStats | null): void {
    const engine = books?.engine;
    if (!books || !engine) {
      this.#pages.replaceChildren();
      facts(this.#server, [['Engine', books ? 'starts again' : 'cannot be asked']]);
      return;
    }
    drawPages(this.#pages, engine);
    facts(this.#server, [
      ['Pages', `${count(engine.pages_free)} of ${count(engine.pages_total)} free`],
      ['Answering', count(engine.active_turns)],
      ['Waiting', count(engine.queued_turns)],
      ['Connected now', count(books.sessions)],
      ['Model', `${books.model}, ${books.dtype} on ${books.device}`],
    ]);
  }
}

/** Live metrics of a conversation: latency, tokens, KV usage, server status and the event log. */

import { fetchSession, fetchStats, type ServerStats, type SessionStatus } from './api.js';
import { Charts } from './charts.js';
import type { ConversationController } from './conversation_controller.js';
import { h } from './dom.js';
import { EventLog } from './event_log.js';
import { formatCount, RESIDENCY_TEXT } from './format.js';
import { drawFacts, drawPageBar, drawTokenBar } from './kv_bars.js';

const POLL_MS = 2000;

export class MetricsPanel {
  readonly element: HTMLElement;
  readonly #conversation: ConversationController;
  readonly #charts = new Charts();
  readonly #tokenBar = h('div', { class: 'bar kv', role: 'img', hidden: true });
  readonly #kv = h('dl', { class: 'facts' });
  readonly #server = h('dl', { class: 'facts' });
  readonly #pageBar = h('div', { class: 'bar pages', role: 'img' });
  readonly #pollTimer: ReturnType<typeof setInterval>;

  constructor(conversation: ConversationController) {
    this.#conversation = conversation;
    this.element = h(
      'aside',
      { class: 'panel', 'aria-label': 'Live metrics' },
      this.#charts.element,
      h('section', {}, h('h3', {}, 'KV cache of this conversation'), this.#tokenBar, this.#kv),
      h('section', {}, h('h3', {}, 'Server'), this.#pageBar, this.#server),
      new EventLog(conversation).element,
    );
    conversation.onMetrics = () => {
      this.draw();
      void this.#poll();
    };
    this.#pollTimer = setInterval(() => {
      if (document.visibilityState === 'visible' && this.#shown) void this.#poll();
    }, POLL_MS);
  }

  get #shown(): boolean {
    return this.element.isConnected && this.element.clientWidth > 0;
  }

  draw(): void {
    if (!this.#shown) return;
    this.#charts.draw(this.#conversation.record.metrics);
  }

  /** Redraw everything after the panel became visible or the theme changed. */
  rebuild(): void {
    this.#charts.rebuild();
    this.draw();
    void this.#poll();
  }

  stopPolling(): void {
    clearInterval(this.#pollTimer);
  }

  async #poll(): Promise<void> {
    const id = this.#conversation.client.resumePoint?.sessionId;
    const ignore = (): null => null;
    const [stats, status] = await Promise.all([
      fetchStats().catch(ignore),
      id === undefined ? null : fetchSession(id).catch(ignore),
    ]);
    this.#drawKV(status);
    this.#drawServer(stats);
  }

  #drawKV(status: SessionStatus | null): void {
    const last = this.#conversation.record.metrics.at(-1)?.residency;
    const where = last ? RESIDENCY_TEXT[last] : '–';
    this.#tokenBar.hidden = status === null;
    if (!status) {
      drawFacts(this.#kv, [['At the last turn', where]]);
      return;
    }
    const { kv } = status;
    // Tokens of a response in progress are counted in `kv` first.
    const total = Math.max(kv.tokens + kv.host_tokens + kv.lost_tokens, status.tokens);
    const describe = (n: number): string => (n > 0 ? `${formatCount(n)} tokens` : 'none');
    drawTokenBar(this.#tokenBar, kv, total);
    drawFacts(this.#kv, [
      ['At the last turn', where],
      ['On the device', `${formatCount(kv.tokens)} of ${formatCount(total)} tokens`, 'accent'],
      ['In host memory', describe(kv.host_tokens), 'second'],
      ['To be recomputed', describe(kv.lost_tokens), 'lost'],
      ['Pages', formatCount(kv.pages)],
    ]);
  }

  #drawServer(stats: ServerStats | null): void {
    const engine = stats?.engine;
    if (!stats || !engine) {
      this.#pageBar.replaceChildren();
      drawFacts(this.#server, [['Engine', stats ? 'restarting' : 'unavailable']]);
      return;
    }
    drawPageBar(this.#pageBar, engine);
    drawFacts(this.#server, [
      ['Pages', `${formatCount(engine.pages_free)} of ${formatCount(engine.pages_total)} free`],
      ['Active turns', formatCount(engine.active_turns)],
      ['Queued turns', formatCount(engine.queued_turns)],
      ['Connections', formatCount(stats.sessions)],
      ['Model', `${stats.model}, ${stats.dtype} on ${stats.device}`],
    ]);
  }
}

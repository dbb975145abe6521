/** Live metrics of a conversation: latency, tokens, KV usage, server status and the event log. */

import { fetchSession, fetchStats, type ServerStats, type SessionStatus } from './api.js';
import { Charts } from './charts.js';
import type { ConversationController } from './conversation_controller.js';
import { h } from './dom.js';
import { EventLog } from './event_log.js';
import { formatCount, RESIDENCY_TEXT } from './format.js';
import { drawPageBar, drawStats, drawTokenBar } from './kv_bars.js';

const POLL_MS = 2000;

export class MetricsPanel {
  readonly element: HTMLElement;
  readonly #conversation: ConversationController;
  readonly #charts = new Charts();
  readonly #tokenBar = h('div', { class: 'bar kv', role: 'img', hidden: true });
  readonly #kvStats = h('dl', { class: 'facts' });
  readonly #serverStats = h('dl', { class: 'facts' });
  readonly #pageBar = h('div', { class: 'bar pages', role: 'img' });
  readonly #log: HTMLDetailsElement;
  readonly #pollTimer: ReturnType<typeof setInterval>;

  constructor(conversation: ConversationController) {
    this.#conversation = conversation;
    this.#log = new EventLog(conversation).element;
    this.element = h(
      'aside',
      { class: 'panel', 'aria-label': 'Live metrics' },
      this.#charts.element,
      h(
        'section',
        {},
        h('h2', {}, 'KV cache of this conversation'),
        explanation('What the model keeps of each token that it has read, so that it need not read it again.'),
        this.#tokenBar,
        this.#kvStats,
      ),
      h(
        'section',
        {},
        h('h2', {}, 'Server'),
        explanation('The memory for the KV of all its conversations, in pages of equal size.'),
        this.#pageBar,
        this.#serverStats,
      ),
      this.#log,
    );
    conversation.onMetricsChange = () => {
      this.drawCharts();
      void this.#poll();
    };
    this.#pollTimer = setInterval(() => {
      if (document.visibilityState === 'visible' && this.#isShown) void this.#poll();
    }, POLL_MS);
  }

  get #isShown(): boolean {
    return this.element.isConnected && this.element.clientWidth > 0;
  }

  drawCharts(): void {
    if (!this.#isShown) return;
    this.#charts.draw(this.#conversation.record.metrics);
  }

  /** Redraw everything after the panel became visible or the theme changed. */
  redraw(): void {
    this.#charts.redraw();
    this.drawCharts();
    void this.#poll();
  }

  /** Unfold the log of events, and scroll to it. */
  showEvents(): void {
    this.#log.open = true;
    this.#log.scrollIntoView();
    this.#log.querySelector('summary')?.focus();
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
    this.#drawKVStats(status);
    this.#drawServerStats(stats);
  }

  #drawKVStats(status: SessionStatus | null): void {
    const last = this.#conversation.record.metrics.at(-1)?.residency;
    const residency = last ? RESIDENCY_TEXT[last] : '–';
    this.#tokenBar.hidden = status === null;
    if (!status) {
      drawStats(this.#kvStats, [['Found at the last turn', residency]]);
      return;
    }
    const { kv } = status;
    // Tokens of a response in progress are counted in `kv` first.
    const total = Math.max(kv.tokens + kv.host_tokens + kv.lost_tokens, status.tokens);
    const describe = (n: number): string => (n > 0 ? `${formatCount(n)} tokens` : 'none');
    drawTokenBar(this.#tokenBar, kv, total);
    drawStats(this.#kvStats, [
      ['Found at the last turn', residency],
      ['On the device', `${formatCount(kv.tokens)} of ${formatCount(total)} tokens`, 'device'],
      ['In host memory', describe(kv.host_tokens), 'host'],
      ['To be recomputed', describe(kv.lost_tokens), 'lost'],
      ['Pages', formatCount(kv.pages)],
    ]);
  }

  #drawServerStats(stats: ServerStats | null): void {
    const engine = stats?.engine;
    if (!stats || !engine) {
      this.#pageBar.replaceChildren();
      drawStats(this.#serverStats, [['Engine', stats ? 'restarting' : 'unavailable']]);
      return;
    }
    drawPageBar(this.#pageBar, engine);
    drawStats(this.#serverStats, [
      ['Leased by sessions', `${formatCount(engine.pages_leased)} pages`, 'leased'],
      ['Cached for sharing', `${formatCount(engine.pages_tree)} pages`, 'shared'],
      ['Pages', `${formatCount(engine.pages_free)} of ${formatCount(engine.pages_total)} free`],
      ['Active turns', formatCount(engine.active_turns)],
      ['Queued turns', formatCount(engine.queued_turns)],
      ['Sessions', formatCount(stats.sessions)],
      ['Model', `${stats.model}, ${stats.dtype} on ${stats.device}`],
    ]);
  }
}

function explanation(text: string): HTMLElement {
  return h('p', { class: 'explanation' }, text);
}

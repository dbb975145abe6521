/** Admin page: throughput, latency and sessions of a gateway, and their control, for its operator. */

import './style.css';
import {
  ApiError,
  type AdminSession,
  apiKey,
  drainServer,
  endSession,
  evictSession,
  fetchAllSessions,
  fetchMetrics,
  fetchStats,
  type ServerStats,
} from './api.js';
import { confirmAction, promptForApiKey } from './dialogs.js';
import { h, icon, iconButton } from './dom.js';
import { formatCount, formatDuration, formatMs, formatPercent, formatTime } from './format.js';
import { drawPageBar, drawStats } from './kv_bars.js';
import { createMark } from './mark.js';
import { MetricsWindow, parseMetrics } from './prometheus.js';
import { applyTheme, switchTheme } from './theme.js';

const POLL_MS = 2000;
const WINDOW_MS = 60_000;

class AdminPage {
  readonly #notice = h('p', { class: 'banner', role: 'status', hidden: true });
  readonly #pageBar = h('div', { class: 'bar pages', role: 'img' });
  readonly #pageStats = h('dl', { class: 'facts' });
  readonly #throughputStats = h('dl', { class: 'facts' });
  readonly #latencyStats = h('dl', { class: 'facts' });
  readonly #serverStats = h('dl', { class: 'facts' });
  readonly #sessionRows = h('tbody');
  readonly #warnings = h('ol', { class: 'warnings' });
  readonly #window = new MetricsWindow(WINDOW_MS);
  #previousPoll: { at: number; stats: ServerStats } | null = null;

  build(root: HTMLElement): void {
    const columns = ['Session', 'Tenant', 'State', 'Age', 'Items', 'Tokens', 'KV tokens', 'Pages'];
    const headers = columns.map((name) => h('th', { scope: 'col' }, name));
    headers.push(h('th', { scope: 'col' }, h('span', { class: 'unseen' }, 'Actions')));
    const card = (title: string, ...children: Node[]): HTMLElement =>
      h('section', {}, h('h2', {}, title), ...children);
    const drainButton = h('button', { type: 'button', onclick: () => void this.#drain() }, 'Drain and stop');
    root.className = 'admin';
    root.append(
      h(
        'header',
        { class: 'top' },
        h('a', { class: 'brand', href: './', 'aria-label': 'Continuo: conversations' }, createMark(), 'Continuo'),
        h('h1', { class: 'title' }, 'Server'),
        h('a', { class: 'icon-button', href: './' }, icon('list'), h('span', { class: 'word' }, 'Conversations')),
        iconButton('sun', 'Theme: switch between light and dark', switchTheme, 'Theme'),
      ),
      h(
        'main',
        {},
        this.#notice,
        h(
          'div',
          { class: 'cards' },
          card('Throughput', this.#throughputStats),
          card('Latency, last minute', this.#latencyStats),
          card('Pages by owner', this.#pageBar, this.#pageStats),
          card('Process', this.#serverStats, drainButton),
        ),
        card(
          'Sessions',
          h(
            'div',
            { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Sessions' },
            h('table', {}, h('thead', {}, h('tr', {}, ...headers)), this.#sessionRows),
          ),
        ),
        card('Recent warnings and errors', this.#warnings),
      ),
    );
  }

  async poll(): Promise<void> {
    await this.#pollOnce();
    setTimeout(() => void this.poll(), POLL_MS);
  }

  async #pollOnce(): Promise<void> {
    try {
      const [stats, sessions, metrics] = await Promise.all([fetchStats(), fetchAllSessions(), fetchMetrics()]);
      this.#notice.hidden = true;
      this.#window.add(performance.now(), parseMetrics(metrics));
      this.#draw(stats);
      this.#drawLatency();
      this.#drawSessions(sessions.data, sessions.has_more);
    } catch (error) {
      if (error instanceof ApiError && (error.status === 401 || error.code === 'insufficient_scope')) {
        apiKey.set((await promptForApiKey(error.message)).key ?? '');
      }
      const status = this.#previousPoll ? 'Showing the last values' : 'No data';
      this.#showNotice(error instanceof Error ? `${status}: ${error.message}` : '');
    }
  }

  #showNotice(text: string): void {
    this.#notice.textContent = text;
    this.#notice.hidden = false;
  }

  #draw(stats: ServerStats): void {
    const { engine } = stats;
    const rates = this.#rates(stats);
    if (engine) {
      drawPageBar(this.#pageBar, engine);
      const pages = (n: number): string => `${formatCount(n)} (${formatPercent(n, engine.pages_total)})`;
      const pair = (a: number, b: number): string => `${formatCount(a)}, ${formatCount(b)}`;
      const hostPages = [engine.host_pages_used, engine.host_pages_total].map(formatCount);
      drawStats(this.#pageStats, [
        ['Leased by sessions', pages(engine.pages_leased), 'leased'],
        ['Cached for sharing', pages(engine.pages_tree), 'shared'],
        ['Free', pages(engine.pages_free)],
        ['In host memory', hostPages.join(' of ')],
      ]);
      drawStats(this.#throughputStats, [
        ['Tokens sampled', rates.sampled],
        ['Tokens computed', rates.computed],
        ['Active, queued turns', pair(engine.active_turns, engine.queued_turns)],
        ['Device busy', rates.busy],
        ['Retractions, evicted pages', pair(engine.retractions, engine.evicted_pages)],
        ['Failed steps', formatCount(engine.failed_steps)],
      ]);
    } else drawStats(this.#throughputStats, [['Engine', 'restarting']]);
    drawStats(this.#serverStats, [
      ['Model', stats.model],
      ['Device', `${stats.device}, ${stats.dtype}`],
      ['Context', `${formatCount(stats.max_model_len)} tokens`],
      ['Uptime', formatDuration(stats.up_s)],
      ['Connections', formatCount(stats.sessions)],
    ]);
    const warnings = stats.warnings.map(({ at, level, message }) =>
      h('li', {}, h('time', {}, formatTime(at * 1000)), h('span', { class: level }, level), message),
    );
    const none = h('li', { class: 'none' }, 'None.');
    this.#warnings.replaceChildren(...(warnings.length ? warnings : [none]));
  }

  #drawLatency(): void {
    const quantiles = (name: string): string =>
      [0.5, 0.95].map((q) => formatMs(scale(this.#window.quantile(q, name), 1000))).join(', ');
    const rate = (name: string): string => {
      const found = this.#window.rate(name);
      return found === null ? '–' : `${Number(found.toFixed(2))} per second`;
    };
    drawStats(this.#latencyStats, [
      ['First token: median, p95', quantiles('vllm:time_to_first_token_seconds')],
      ['Between outputs: median, p95', quantiles('vllm:inter_token_latency_seconds')],
      ['Store calls: median, p95', quantiles('continuo_store_call_seconds')],
      ['Responses', rate('vllm:request_success_total')],
      ['Refused', rate('continuo_refusals_total')],
    ]);
  }

  /** Returns rates since the last poll. */
  #rates(stats: ServerStats): { sampled: string; computed: string; busy: string } {
    const previous = this.#previousPoll;
    const at = performance.now();
    this.#previousPoll = { at, stats: stats };
    const [old, current] = [previous?.stats.engine, stats.engine];
    if (!previous || !old || !current) return { sampled: '–', computed: '–', busy: '–' };
    const elapsed_s = (at - previous.at) / 1000;
    const busy = Math.round((100 * (current.model_s - old.model_s)) / elapsed_s);
    const rate = (earlier: number, later: number): string =>
      `${formatCount(Math.max(0, Math.round((later - earlier) / elapsed_s)))} per second`;
    return {
      sampled: rate(old.tokens_drawn, current.tokens_drawn),
      computed: rate(old.tokens_computed, current.tokens_computed),
      busy: `${Math.max(0, Math.min(100, busy))}%`,
    };
  }

  #drawSessions(sessions: AdminSession[], hasMore: boolean): void {
    // A row keeps its element, so that a button is not replaced while it is pressed or has the focus.
    const existing = new Map([...this.#sessionRows.rows].map((row) => [row.dataset.id, row]));
    const rows = sessions.map((session) => {
      const row = existing.get(session.id) ?? this.#createRow(session.id);
      const { tenant, is_connected, state, age_s, items, tokens, kv } = session;
      const texts = [
        tenant || '–',
        is_connected ? state : `${state}, parked`,
        formatDuration(age_s),
        ...[items, tokens, kv.tokens, kv.pages].map(formatCount),
      ];
      texts.forEach((text, index) => {
        const cell = row.cells[index + 1];
        if (cell) cell.textContent = text;
      });
      return row;
    });
    const note = hasMore ? 'Only the most recent sessions are shown.' : 'No sessions.';
    if (hasMore || rows.length === 0) {
      rows.push(h('tr', {}, h('td', { colspan: '9', class: 'none' }, note)));
    }
    for (const row of [...this.#sessionRows.rows]) if (!rows.includes(row)) row.remove();
    rows.forEach((row, index) => {
      const present = this.#sessionRows.rows[index];
      if (present !== row) this.#sessionRows.insertBefore(row, present ?? null);
    });
  }

  #createRow(id: string): HTMLTableRowElement {
    const action = (label: string, run: () => Promise<void>): HTMLButtonElement =>
      h('button', { type: 'button', 'aria-label': `${label} ${id}`, onclick: () => void run() }, label);
    const evict = (): Promise<void> => this.#run(() => evictSession(id));
    const end = async (): Promise<void> => {
      const message = `End session ${id}? It is deleted from the store, and its client is disconnected.`;
      if (await confirmAction(message, 'End session')) await this.#run(() => endSession(id));
    };
    return h(
      'tr',
      { 'data-id': id },
      h('td', {}, h('code', {}, id)),
      h('td'),
      h('td'),
      ...Array.from({ length: 5 }, () => h('td', { class: 'number' })),
      h('td', { class: 'controls' }, action('Evict', evict), action('End', end)),
    );
  }

  async #drain(): Promise<void> {
    const message = 'Drain this gateway? It refuses new work, finishes its responses and stops.';
    if (await confirmAction(message, 'Drain and stop')) await this.#run(drainServer);
  }

  /** Run an action, and show its error, or its effect. */
  async #run(action: () => Promise<unknown>): Promise<void> {
    try {
      await action();
      await this.#pollOnce();
    } catch (error) {
      this.#showNotice(error instanceof Error ? error.message : String(error));
    }
  }
}

function scale(value: number | null, factor: number): number | null {
  return value === null ? null : value * factor;
}

applyTheme();
const admin = new AdminPage();
admin.build(document.getElementById('app') ?? document.body);
void admin.poll();

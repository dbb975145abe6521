/** Admin page: a read-only view of the server for its operator. */

import './style.css';
import {
  ApiError,
  apiKey,
  fetchSessions,
  fetchStats,
  type ServerStats,
  type SessionStatus,
} from './api.js';
import { askApiKey } from './dialogs.js';
import { h, iconButton } from './dom.js';
import { formatCount, formatDuration, formatShare, formatTime } from './format.js';
import { drawFacts, drawPageBar } from './kv_bars.js';
import { applyTheme, switchTheme } from './theme.js';

const POLL_MS = 2000;

class AdminPage {
  readonly #notice = h('p', { class: 'banner', role: 'status', hidden: true });
  readonly #pageBar = h('div', { class: 'bar pages', role: 'img' });
  readonly #pageFacts = h('dl', { class: 'facts' });
  readonly #workFacts = h('dl', { class: 'facts' });
  readonly #serverFacts = h('dl', { class: 'facts' });
  readonly #rows = h('tbody');
  readonly #warnings = h('ol', { class: 'warnings' });
  #previous: { at: number; stats: ServerStats } | null = null;

  build(root: HTMLElement): void {
    const columns = ['Session', 'State', 'Items', 'Tokens', 'KV tokens', 'Pages', 'Host pages'];
    const heads = columns.map((name) => h('th', { scope: 'col' }, name));
    const card = (title: string, ...inside: Node[]): HTMLElement =>
      h('section', {}, h('h2', {}, title), ...inside);
    root.className = 'admin';
    root.append(
      h(
        'header',
        { class: 'top' },
        h('a', { class: 'brand', href: '/' }, 'Continuo'),
        h('h1', { class: 'title' }, 'Server'),
        iconButton('sun', 'Switch between light and dark', switchTheme),
      ),
      h(
        'main',
        {},
        this.#notice,
        h(
          'div',
          { class: 'cards' },
          card('Pages by owner', this.#pageBar, this.#pageFacts),
          card('Throughput', this.#workFacts),
          card('Process', this.#serverFacts),
        ),
        card(
          'Sessions',
          h(
            'div',
            { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Sessions' },
            h('table', {}, h('thead', {}, h('tr', {}, ...heads)), this.#rows),
          ),
        ),
        card('Recent warnings', this.#warnings),
      ),
    );
  }

  async poll(): Promise<void> {
    try {
      const [now, open] = await Promise.all([fetchStats(), fetchSessions()]);
      this.#notice.hidden = true;
      this.#draw(now);
      this.#drawSessions(open.data, open.has_more);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        apiKey.set((await askApiKey(error.message)) ?? '');
      }
      const status = this.#previous ? 'Showing the last values' : 'No data';
      this.#notice.textContent = error instanceof Error ? `${status}: ${error.message}` : '';
      this.#notice.hidden = false;
    }
    setTimeout(() => void this.poll(), POLL_MS);
  }

  #draw(now: ServerStats): void {
    const { engine } = now;
    const rates = this.#rates(now);
    if (engine) {
      drawPageBar(this.#pageBar, engine);
      const pages = (n: number): string => `${formatCount(n)} (${formatShare(n, engine.pages_total)})`;
      const pair = (a: number, b: number): string => `${formatCount(a)}, ${formatCount(b)}`;
      const hostPages = [engine.host_pages_used, engine.host_pages_total].map(formatCount);
      drawFacts(this.#pageFacts, [
        ['Leased by sessions', pages(engine.pages_leased)],
        ['Cached for sharing', pages(engine.pages_tree)],
        ['Free', pages(engine.pages_free)],
        ['In host memory', hostPages.join(' of ')],
      ]);
      drawFacts(this.#workFacts, [
        ['Tokens sampled', `${rates.sampled} per second`],
        ['Tokens computed', `${rates.computed} per second`],
        ['Active, queued turns', pair(engine.active_turns, engine.queued_turns)],
        ['Device busy', rates.busy],
        ['Retractions, evicted pages', pair(engine.retractions, engine.evicted_pages)],
        ['Failed steps', formatCount(engine.failed_steps)],
      ]);
    } else drawFacts(this.#workFacts, [['Engine', 'restarting']]);
    drawFacts(this.#serverFacts, [
      ['Model', now.model],
      ['Device', `${now.device}, ${now.dtype}`],
      ['Context', `${formatCount(now.max_model_len)} tokens`],
      ['Uptime', formatDuration(now.up_s)],
      ['Connections', formatCount(now.sessions)],
    ]);
    const warnings = now.warnings.map(({ at, level, message }) =>
      h('li', {}, h('time', {}, formatTime(at * 1000)), h('span', { class: level }, level), message),
    );
    const none = h('li', { class: 'none' }, 'None.');
    this.#warnings.replaceChildren(...(warnings.length ? warnings : [none]));
  }

  /** Returns rates since the last poll. */
  #rates(now: ServerStats): { sampled: string; computed: string; busy: string } {
    const previous = this.#previous;
    const at = performance.now();
    this.#previous = { at, stats: now };
    const [old, current] = [previous?.stats.engine, now.engine];
    if (!previous || !old || !current) return { sampled: '–', computed: '–', busy: '–' };
    const elapsed_s = (at - previous.at) / 1000;
    const busy = Math.round((100 * (current.model_s - old.model_s)) / elapsed_s);
    const rate = (earlier: number, later: number): string =>
      formatCount(Math.max(0, Math.round((later - earlier) / elapsed_s)));
    return {
      sampled: rate(old.tokens_drawn, current.tokens_drawn),
      computed: rate(old.tokens_computed, current.tokens_computed),
      busy: `${Math.max(0, Math.min(100, busy))}%`,
    };
  }

  #drawSessions(open: SessionStatus[], more: boolean): void {
    const rows = open.map(({ id, state, items, tokens, kv }) =>
      h(
        'tr',
        {},
        h('td', {}, h('code', {}, id)),
        h('td', { class: state }, state),
        ...[items, tokens, kv.tokens, kv.pages, kv.host_pages].map((n) =>
          h('td', { class: 'number' }, formatCount(n)),
        ),
      ),
    );
    const note = more ? 'Only the most recent sessions are shown.' : 'No sessions.';
    if (more || rows.length === 0) {
      rows.push(h('tr', {}, h('td', { colspan: '7', class: 'none' }, note)));
    }
    this.#rows.replaceChildren(...rows);
  }
}

applyTheme();
const admin = new AdminPage();
admin.build(document.getElementById('app') ?? document.body);
void admin.poll();

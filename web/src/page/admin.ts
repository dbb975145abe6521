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
import { promptForApiKey } from './dialogs.js';
import { h, iconButton } from './dom.js';
import { formatCount, formatDuration, formatPercent, formatTime } from './format.js';
import { drawPageBar, drawStats } from './kv_bars.js';
import { applyTheme, switchTheme } from './theme.js';

const POLL_MS = 2000;

class AdminPage {
  readonly #notice = h('p', { class: 'banner', role: 'status', hidden: true });
  readonly #pageBar = h('div', { class: 'bar pages', role: 'img' });
  readonly #pageStats = h('dl', { class: 'facts' });
  readonly #throughputStats = h('dl', { class: 'facts' });
  readonly #serverStats = h('dl', { class: 'facts' });
  readonly #sessionRows = h('tbody');
  readonly #warnings = h('ol', { class: 'warnings' });
  #previousPoll: { at: number; stats: ServerStats } | null = null;

  build(root: HTMLElement): void {
    const columns = ['Session', 'State', 'Items', 'Tokens', 'KV tokens', 'Pages', 'Host pages'];
    const headers = columns.map((name) => h('th', { scope: 'col' }, name));
    const card = (title: string, ...children: Node[]): HTMLElement =>
      h('section', {}, h('h2', {}, title), ...children);
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
          card('Pages by owner', this.#pageBar, this.#pageStats),
          card('Throughput', this.#throughputStats),
          card('Process', this.#serverStats),
        ),
        card(
          'Sessions',
          h(
            'div',
            { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Sessions' },
            h('table', {}, h('thead', {}, h('tr', {}, ...headers)), this.#sessionRows),
          ),
        ),
        card('Recent warnings', this.#warnings),
      ),
    );
  }

  async poll(): Promise<void> {
    try {
      const [stats, sessions] = await Promise.all([fetchStats(), fetchSessions()]);
      this.#notice.hidden = true;
      this.#draw(stats);
      this.#drawSessions(sessions.data, sessions.has_more);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        apiKey.set((await promptForApiKey(error.message)) ?? '');
      }
      const status = this.#previousPoll ? 'Showing the last values' : 'No data';
      this.#notice.textContent = error instanceof Error ? `${status}: ${error.message}` : '';
      this.#notice.hidden = false;
    }
    setTimeout(() => void this.poll(), POLL_MS);
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
        ['Leased by sessions', pages(engine.pages_leased)],
        ['Cached for sharing', pages(engine.pages_tree)],
        ['Free', pages(engine.pages_free)],
        ['In host memory', hostPages.join(' of ')],
      ]);
      drawStats(this.#throughputStats, [
        ['Tokens sampled', `${rates.sampled} per second`],
        ['Tokens computed', `${rates.computed} per second`],
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
      formatCount(Math.max(0, Math.round((later - earlier) / elapsed_s)));
    return {
      sampled: rate(old.tokens_drawn, current.tokens_drawn),
      computed: rate(old.tokens_computed, current.tokens_computed),
      busy: `${Math.max(0, Math.min(100, busy))}%`,
    };
  }

  #drawSessions(sessions: SessionStatus[], hasMore: boolean): void {
    const rows = sessions.map(({ id, state, items, tokens, kv }) =>
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
    const note = hasMore ? 'Only the most recent sessions are shown.' : 'No sessions.';
    if (hasMore || rows.length === 0) {
      rows.push(h('tr', {}, h('td', { colspan: '7', class: 'none' }, note)));
    }
    this.#sessionRows.replaceChildren(...rows);
  }
}

applyTheme();
const admin = new AdminPage();
admin.build(document.getElementById('app') ?? document.body);
void admin.poll();

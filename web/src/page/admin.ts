/** The server, for who runs it. Looks, and touches nothing. */

import './style.css';
import { Denied, key, type ServerStats, sessions, type SessionStatus, stats } from './api.js';
import { h, iconButton } from './dom.js';
import { drawPages, facts } from './kv_bars.js';
import { askKey } from './dialogs.js';
import { applyTheme, switchTheme } from './theme.js';
import { clock, count, duration, share } from './format.js';

const POLL_MS = 2000;

class Admin {
  readonly #note = h('p', { class: 'banner', role: 'status', hidden: true });
  readonly #pages = h('div', { class: 'bar pages', role: 'img' });
  readonly #held = h('dl', { class: 'facts' });
  readonly #work = h('dl', { class: 'facts' });
  readonly #server = h('dl', { class: 'facts' });
  readonly #rows = h('tbody');
  readonly #warnings = h('ol', { class: 'warnings' });
  #before: { at: number; stats: ServerStats } | null = null;

  build(root: HTMLElement): void {
    const columns = ['Session', 'State', 'Items', 'Tokens', 'KV tokens', 'Pages', 'On host'];
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
        iconButton('sun', 'Light or dark', switchTheme),
      ),
      h(
        'main',
        {},
        this.#note,
        h(
          'div',
          { class: 'cards' },
          card('Pages by owner', this.#pages, this.#held),
          card('Work', this.#work),
          card('Process', this.#server),
        ),
        card(
          'Sessions',
          h(
            'div',
            { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Sessions' },
            h('table', {}, h('thead', {}, h('tr', {}, ...heads)), this.#rows),
          ),
        ),
        card('Last warnings', this.#warnings),
      ),
    );
  }

  async poll(): Promise<void> {
    try {
      const [now, open] = await Promise.all([stats(), sessions()]);
      this.#note.hidden = true;
      this.#draw(now);
      this.#drawSessions(open.data, open.has_more);
    } catch (error) {
      if (error instanceof Denied && error.status === 401) {
        key.set((await askKey(error.message)) ?? '');
      }
      const shown = this.#before ? 'These are the last figures' : 'Nothing to show';
      this.#note.textContent = error instanceof Error ? `${shown}: ${error.message}` : '';
      this.#note.hidden = false;
    }
    setTimeout(() => void this.poll(), POLL_MS);
  }

  #draw(now: ServerStats): void {
    const { engine } = now;
    const rates = this.#rates(now);
    if (engine) {
      drawPages(this.#pages, engine);
      const pages = (n: number): string => `${count(n)} (${share(n, engine.pages_total)})`;
      facts(this.#held, [
        ['Held by conversations', pages(engine.pages_leased)],
        ['Kept to be shared', pages(engine.pages_tree)],
        ['Free', pages(engine.pages_free)],
        ['In host memory', `${count(engine.host_pages_used)} of ${count(engine.host_pages_total)}`],
      ]);
      facts(this.#work, [
        ['Tokens drawn', `${rates.drawn} a second`],
        ['Tokens computed', `${rates.computed} a second`],
        ['Answering, waiting', `${count(engine.active_turns)}, ${count(engine.queued_turns)}`],
        ['Device busy', rates.busy],
        ['Retracted, evicted pages', `${count(engine.retractions)}, ${count(engine.evicted_pages)}`],
        ['Failed steps', count(engine.failed_steps)],
      ]);
    } else facts(this.#work, [['Engine', 'starts again']]);
    facts(this.#server, [
      ['Model', now.model],
      ['Runs on', `${now.device}, ${now.dtype}`],
      ['Context', `${count(now.max_model_len)} tokens`],
      ['Up for', duration(now.up_s)],
      ['Connected now', count(now.sessions)],
    ]);
    const lines = now.warnings.map(({ at, level, message }) =>
      h('li', {}, h('time', {}, clock(at * 1000)), h('span', { class: level }, level), message),
    );
    this.#warnings.replaceChildren(...(lines.length ? lines : [h('li', { class: 'none' }, 'None.')]));
  }

  /** Since the last look. */
  #rates(now: ServerStats): { drawn: string; computed: string; busy: string } {
    const before = this.#before;
    const at = performance.now();
    this.#before = { at, stats: now };
    const [old, young] = [before?.stats.engine, now.engine];
    if (!before || !old || !young) return { drawn: '–', computed: '–', busy: '–' };
    const s = (at - before.at) / 1000;
    const rate = (was: number, is: number): string => count(Math.max(0, Math.round((is - was) / s)));
    return {
      drawn: rate(old.tokens_drawn, young.tokens_drawn),
      computed: rate(old.tokens_computed, young.tokens_computed),
      busy: `${Math.max(0, Math.min(100, Math.round((100 * (young.model_s - old.model_s)) / s)))} %`,
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
          h('td', { class: 'number' }, count(n)),
        ),
      ),
    );
    const rest = more ? 'There are more; the youngest are shown.' : 'Nobody is talking.';
    if (more || rows.length === 0) {
      rows.push(h('tr', {}, h('td', { colspan: '7', class: 'none' }, rest)));
    }
    this.#rows.replaceChildren(...rows);
  }
}

applyTheme();
const admin = new Admin();
admin.build(document.getElementById('app') ?? document.body);
void admin.poll();

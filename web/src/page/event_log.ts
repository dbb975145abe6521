/** What went over the wire, both ways: filtered, looked into, exported. */

import { h, perFrame } from './dom.js';
import type { LoggedEvent, Talk } from './conversation_controller.js';
import { clock } from './format.js';

const ROWS_MAX = 200;

export class EventLog {
  readonly element: HTMLDetailsElement;
  readonly #rows = h('ol', { class: 'events' });
  readonly #filter = h('input', {
    type: 'search',
    placeholder: 'Filter, as delta or error',
    'aria-label': 'Filter events',
  });
  readonly #talk: Talk;
  readonly #ask = perFrame(() => {
    this.#draw();
  });
  #drawn: { logged: LoggedEvent; row: HTMLElement; times: number } | null = null;
  #next = 0;

  constructor(talk: Talk) {
    this.#talk = talk;
    const save = h('button', { type: 'button', onclick: () => this.#export() }, 'Export');
    const head = h('div', { class: 'row' }, this.#filter, save);
    this.element = h('details', { class: 'log' }, h('summary', {}, 'Events'), head, this.#rows);
    this.element.addEventListener('toggle', () => this.#restart());
    this.#filter.addEventListener('input', () => this.#restart());
    talk.onLogged = () => {
      this.#next += 1;
      if (this.element.open) this.#ask();
    };
  }

  #restart(): void {
    this.#rows.replaceChildren();
    this.#drawn = null;
    this.#next = this.#talk.log.length;
    this.#ask();
  }

  #draw(): void {
    if (!this.element.open) return;
    const { log } = this.#talk;
    const wanted = this.#filter.value.trim().toLowerCase();
    const following =
      this.#rows.scrollHeight - this.#rows.scrollTop - this.#rows.clientHeight < 40;
    for (const logged of log.slice(-Math.min(this.#next, ROWS_MAX * 2))) {
      if (wanted && !JSON.stringify(logged.event).toLowerCase().includes(wanted)) continue;
      this.#add(logged);
    }
    this.#next = 0;
    while (this.#rows.childElementCount > ROWS_MAX) this.#rows.firstElementChild?.remove();
    if (following) this.#rows.scrollTop = this.#rows.scrollHeight;
  }

  /** A row of its own, or one more of the deltas before it. */
  #add(logged: LoggedEvent): void {
    const { event, sent, at } = logged;
    const drawn = this.#drawn;
    if (drawn && event.type.endsWith('.delta') && drawn.logged.event.type === event.type) {
      drawn.times += 1;
      const times = drawn.row.querySelector('.times');
      if (times) times.textContent = `× ${drawn.times}`;
      return;
    }
    const body = h('pre', { tabindex: '0' });
    const row = h(
      'li',
      { class: event.type === 'error' ? 'error' : sent ? 'sent' : 'got' },
      h(
        'details',
        {
          ontoggle: () => {
            body.textContent = JSON.stringify(event, null, 2);
          },
        },
        h(
          'summary',
          {},
          h('span', { class: 'way', 'aria-label': sent ? 'sent' : 'received' }, sent ? '↑' : '↓'),
          h('span', { class: 'type' }, event.type),
          h('span', { class: 'times' }),
          h('time', {}, clock(at)),
        ),
        body,
      ),
    );
    this.#rows.append(row);
    this.#drawn = { logged, row, times: 1 };
  }

  /** One JSON object a line. */
  #export(): void {
    const lines = this.#talk.log.map((logged) => JSON.stringify(logged)).join('\n');
    const url = URL.createObjectURL(new Blob([lines], { type: 'application/jsonl' }));
    h('a', { href: url, download: 'continuo-events.jsonl' }).click();
    setTimeout(() => {
      URL.revokeObjectURL(url);
    }, 1000);
  }
}

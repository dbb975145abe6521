/** Log of the events on the wire in both directions, with a filter and an export. */

import type { ConversationController, LoggedEvent } from './conversation_controller.js';
import { h, throttleToFrame } from './dom.js';
import { formatTime } from './format.js';

const ROWS_MAX = 200;

export class EventLog {
  readonly element: HTMLDetailsElement;
  readonly #rows = h('ol', { class: 'events' });
  readonly #filter = h('input', {
    type: 'search',
    placeholder: 'Filter, such as delta or error',
    'aria-label': 'Filter events',
  });
  readonly #conversation: ConversationController;
  readonly #scheduleDraw = throttleToFrame(() => {
    this.#draw();
  });
  #lastRow: { logged: LoggedEvent; row: HTMLElement; count: number } | null = null;
  #undrawnCount = 0;

  constructor(conversation: ConversationController) {
    this.#conversation = conversation;
    const exportButton = h('button', { type: 'button', onclick: () => this.#export() }, 'Export');
    const toolbar = h('div', { class: 'row' }, this.#filter, exportButton);
    this.element = h('details', { class: 'log' }, h('summary', {}, 'Events'), toolbar, this.#rows);
    this.element.addEventListener('toggle', () => this.#redraw());
    this.#filter.addEventListener('input', () => this.#redraw());
    conversation.onEventLogged = () => {
      this.#undrawnCount += 1;
      if (this.element.open) this.#scheduleDraw();
    };
  }

  #redraw(): void {
    this.#rows.replaceChildren();
    this.#lastRow = null;
    this.#undrawnCount = this.#conversation.loggedEvents.length;
    this.#scheduleDraw();
  }

  #draw(): void {
    if (!this.element.open) return;
    const { loggedEvents } = this.#conversation;
    const filter = this.#filter.value.trim().toLowerCase();
    const atEnd =
      this.#rows.scrollHeight - this.#rows.scrollTop - this.#rows.clientHeight < 40;
    for (const logged of loggedEvents.slice(-Math.min(this.#undrawnCount, ROWS_MAX * 2))) {
      if (filter && !JSON.stringify(logged.event).toLowerCase().includes(filter)) continue;
      this.#drawEvent(logged);
    }
    this.#undrawnCount = 0;
    while (this.#rows.childElementCount > ROWS_MAX) this.#rows.firstElementChild?.remove();
    if (atEnd) this.#rows.scrollTop = this.#rows.scrollHeight;
  }

  /** Add a row for an event, or count it in the row of the same deltas before. */
  #drawEvent(logged: LoggedEvent): void {
    const { event, sent, at } = logged;
    const lastRow = this.#lastRow;
    if (lastRow && event.type.endsWith('.delta') && lastRow.logged.event.type === event.type) {
      lastRow.count += 1;
      const countElement = lastRow.row.querySelector('.times');
      if (countElement) countElement.textContent = `× ${lastRow.count}`;
      return;
    }
    const body = h('pre', { tabindex: '0' });
    const row = h(
      'li',
      { class: event.type === 'error' ? 'error' : sent ? 'sent' : 'received' },
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
          h('span', { class: 'direction', 'aria-label': sent ? 'sent' : 'received' }, sent ? '↑' : '↓'),
          h('span', { class: 'type' }, event.type),
          h('span', { class: 'times' }),
          h('time', {}, formatTime(at)),
        ),
        body,
      ),
    );
    this.#rows.append(row);
    this.#lastRow = { logged, row, count: 1 };
  }

  /** Download the log as JSON Lines. */
  #export(): void {
    const lines = this.#conversation.loggedEvents.map((logged) => JSON.stringify(logged)).join('\n');
    const url = URL.createObjectURL(new Blob([lines], { type: 'application/jsonl' }));
    h('a', { href: url, download: 'continuo-events.jsonl' }).click();
    setTimeout(() => {
      URL.revokeObjectURL(url);
    }, 1000);
  }
}

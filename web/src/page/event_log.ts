/** Log of the events on the wire in both directions: a row each with its size and time, a filter, and copies
 * as code and as JSON Lines. */

import type { ClientEvent } from '../client/index.js';
import { serverUrl } from './api.js';
import { BoundedText } from './bounded_text.js';
import type { ConversationController, LoggedEvent } from './conversation_controller.js';
import { copyText, flashCheckMark, h, throttleToFrame } from './dom.js';
import { type CodeLanguage, writeCode } from './event_code.js';
import { formatBytes, formatMs, formatTime } from './format.js';

const ROWS_MAX = 200;
/** Events drawn at once without a filter, several of which may share a row. */
const EVENTS_DRAWN_MAX = 2 * ROWS_MAX;

/** Row of an event, or of successive deltas of one type. */
interface Row {
  type: string;
  element: HTMLElement;
  count: number;
  bytes: number;
}

export class EventLog {
  readonly element: HTMLDetailsElement;
  readonly #rows = h('ol', { class: 'events', 'aria-label': 'Events, oldest first' });
  readonly #filter = h('input', {
    type: 'search',
    placeholder: 'Filter, such as delta',
    'aria-label': 'Filter events',
  });
  readonly #direction = h(
    'select',
    { 'aria-label': 'Direction' },
    h('option', { value: '' }, '↑↓ All'),
    h('option', { value: 'sent' }, '↑ Sent'),
    h('option', { value: 'received' }, '↓ Received'),
  );
  readonly #conversation: ConversationController;
  readonly #scheduleDraw = throttleToFrame(() => {
    this.#draw();
  });
  readonly #encoder = new TextEncoder();
  #lastRow: Row | null = null;
  #undrawnCount = 0;
  /** When the last turn before the next undrawn event was requested; null if it has ended. */
  #turnStartedAt: number | null = null;

  constructor(conversation: ConversationController) {
    this.#conversation = conversation;
    this.element = h(
      'details',
      { class: 'log' },
      h('summary', {}, 'Events'),
      h(
        'p',
        { class: 'explanation' },
        'What this page and the server send each other: sent ↑ or received ↓, size as JSON, and time since ' +
          'the response was requested. The code sends your events again, in a new session.',
      ),
      h('div', { class: 'row' }, this.#filter, this.#direction),
      this.#rows,
      h(
        'div',
        { class: 'row copies' },
        this.#codeButton('Python'),
        this.#codeButton('JavaScript'),
        h('button', { type: 'button', onclick: () => this.#export() }, 'Export'),
      ),
    );
    for (const [target, event] of [
      [this.element, 'toggle'],
      [this.#filter, 'input'],
      [this.#direction, 'change'],
    ] as const) {
      target.addEventListener(event, () => {
        this.#redraw();
      });
    }
    conversation.onEventLogged = () => {
      this.#undrawnCount += 1;
      if (this.element.open) this.#scheduleDraw();
    };
  }

  #redraw(): void {
    this.#undrawnCount = this.#conversation.loggedEvents.length;
    this.#scheduleDraw();
  }

  /** Remove all rows, in the frame that draws the new ones: an empty list is never shown between them. */
  #clear(): void {
    this.#rows.replaceChildren();
    this.#lastRow = null;
    this.#turnStartedAt = null;
  }

  #draw(): void {
    if (!this.element.open) return;
    const { loggedEvents } = this.#conversation;
    if (this.#undrawnCount >= loggedEvents.length) this.#clear();
    const filter = this.#filter.value.trim().toLowerCase();
    const direction = this.#direction.value;
    const atEnd =
      this.#rows.scrollHeight - this.#rows.scrollTop - this.#rows.clientHeight < 40;
    const undrawn = this.#undrawnCount > 0 ? loggedEvents.slice(-this.#undrawnCount) : [];
    for (const [index, logged] of undrawn.entries()) {
      const since_ms = this.#timeSinceRequest(logged);
      if (!filter && index < undrawn.length - EVENTS_DRAWN_MAX) continue;
      if (direction && (direction === 'sent') !== logged.sent) continue;
      const json = JSON.stringify(logged.event);
      if (filter && !json.toLowerCase().includes(filter)) continue;
      this.#drawEvent(logged, this.#encoder.encode(json).length, since_ms);
    }
    this.#undrawnCount = 0;
    while (this.#rows.childElementCount > ROWS_MAX) this.#rows.firstElementChild?.remove();
    if (atEnd) this.#rows.scrollTop = this.#rows.scrollHeight;
  }

  /** Returns the time since the response in progress was requested; null if there is none. */
  #timeSinceRequest({ at, event }: LoggedEvent): number | null {
    if (event.type === 'response.create') this.#turnStartedAt = at;
    const startedAt = this.#turnStartedAt;
    if (event.type === 'response.done') this.#turnStartedAt = null;
    return startedAt === null ? null : at - startedAt;
  }

  /** Add a row for an event, or count it in the row of the same deltas before. */
  #drawEvent(logged: LoggedEvent, bytes: number, since_ms: number | null): void {
    const { event, sent, at } = logged;
    const last = this.#lastRow;
    if (last && event.type.endsWith('.delta') && last.type === event.type) {
      last.count += 1;
      last.bytes += bytes;
      const set = (name: string, text: string): void => {
        const element = last.element.querySelector(`.${name}`);
        if (element) element.textContent = text;
      };
      set('times', `× ${last.count}`);
      set('size', formatBytes(last.bytes));
      return;
    }
    const body = h('pre', { tabindex: '0' });
    const summary = h(
      'summary',
      {},
      h('span', { class: 'direction', role: 'img', 'aria-label': sent ? 'sent' : 'received' }, sent ? '↑' : '↓'),
      h('span', { class: 'type' }, event.type),
      h('span', { class: 'times' }),
      h('span', { class: 'size' }, formatBytes(bytes)),
      h('time', { title: formatTime(at) }, since_ms === null ? formatTime(at) : `+${formatMs(since_ms)}`),
    );
    const text = new BoundedText(body);
    const showBody = (): void => {
      text.show(JSON.stringify(event, null, 2));
    };
    const element = h(
      'li',
      { class: event.type === 'error' ? 'error' : sent ? 'sent' : 'received' },
      h('details', { ontoggle: showBody }, summary, body),
    );
    element.classList.toggle('request', event.type === 'response.create');
    this.#rows.append(element);
    this.#lastRow = { type: event.type, element, count: 1, bytes };
  }

  #codeButton(language: CodeLanguage): HTMLButtonElement {
    const button = h('button', { type: 'button', onclick: () => void copy() }, `Copy as ${language}`);
    const copy = async (): Promise<void> => {
      await copyText(this.#writeCode(language));
      flashCheckMark(button);
    };
    return button;
  }

  #writeCode(language: CodeLanguage): string {
    const { loggedEvents, model } = this.#conversation;
    const url = new URL(serverUrl('v1/realtime').replace(/^http/, 'ws'));
    if (model !== null) url.searchParams.set('model', model);
    const sent = loggedEvents.flatMap(({ sent, event }) => (sent ? [event as ClientEvent] : []));
    return writeCode(language, url.href, sent);
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

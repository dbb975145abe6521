/**
 * What has been sent and not acknowledged. Pure bookkeeping: knows no socket and no clock.
 *
 * Every event that the server acknowledges is kept until it does, and sent again, in order and with
 * the same event_id, when the connection has been lost meanwhile: the server does each id once.
 */

import type { ClientEvent, ErrorBody, ServerEvent } from './events.js';
import type { Closing } from './close_codes.js';

/** The server refused one event. Nothing has changed, and the connection is good. */
export class Refused extends Error {
  readonly code: string | null;
  /** The field it is about. */
  readonly param: string | null;

  constructor(error: ErrorBody) {
    super(error.message);
    this.name = 'Refused';
    this.code = error.code;
    this.param = error.param;
  }
}

/** The conversation with the server is over, and trying again by itself makes no sense. */
export class Ended extends Error {
  /** The code of the server's last error, or `close_CODE`. */
  readonly code: string;
  readonly closing: Closing | null;

  constructor(code: string, message: string, closing: Closing | null = null) {
    super(message);
    this.name = 'Ended';
    this.code = code;
    this.closing = closing;
  }
}

export type IdentifiedEvent = ClientEvent & { event_id: string };

export interface Receipt {
  readonly eventId: string;
  /** The event that acknowledges it. Rejects with Refused, or Ended. */
  readonly acknowledged: Promise<ServerEvent>;
}

interface PendingEvent {
  event: IdentifiedEvent;
  /** What to send when the connection was lost meanwhile. */
  retryAs: IdentifiedEvent[];
  /** When it went out on this connection, milliseconds; null: it has not. */
  sentAt: number | null;
  resolve: (event: ServerEvent) => void;
  reject: (error: Error) => void;
}

const noop = (): void => undefined;

const SEEN_RESPONSES_MAX = 64;

export class Outbox {
  #pending: PendingEvent[] = [];
  /** Responses that have been announced: to hear of one again acknowledges nothing. */
  readonly #seenResponses = new Set<string>();

  /** `again` is what to send instead of `event` after a loss; the last of it has the same id. */
  add(event: IdentifiedEvent, retryAs: IdentifiedEvent[] = [event], atFront = false): Receipt {
    const acknowledged = new Promise<ServerEvent>((resolve, reject) => {
      const pendingEvent = { event, retryAs: retryAs, sentAt: null, resolve, reject };
      if (atFront) this.#pending.unshift(pendingEvent);
      else this.#pending.push(pendingEvent);
    });
    acknowledged.catch(() => undefined); // who does not ask is not told
    return { eventId: event.event_id, acknowledged };
  }

  /** Those that have not gone out on this connection, which they now do; `only` one of them. */
  takeUnsent(now: number, only?: string): IdentifiedEvent[] {
    const unsent = this.#pending.filter(
      ({ sentAt, event }) => sentAt === null && (only ?? event.event_id) === event.event_id,
    );
    for (const pendingEvent of unsent) pendingEvent.sentAt = now;
    return unsent.map((pendingEvent) => pendingEvent.event);
  }

  /** Nobody waits for this one any more. */
  remove(eventId: string): void {
    this.#pending = this.#pending.filter(({ event }) => event.event_id !== eventId);
  }

  /** The connection is lost: all that is not acknowledged goes out again. */
  markUnsent(): void {
    this.#pending = this.#pending.flatMap((pendingEvent) => {
      if (pendingEvent.sentAt === null) return [pendingEvent];
      const [before, last] = [pendingEvent.retryAs.slice(0, -1), pendingEvent.retryAs.at(-1) ?? pendingEvent.event];
      const unobserved = { sentAt: null, resolve: noop, reject: noop };
      return [
        ...before.map((event) => ({ event, again: [event], ...unobserved })),
        { ...pendingEvent, event: last, retryAs: [last], sentAt: null },
      ];
    });
  }

  receive(event: ServerEvent): void {
    if (event.type === 'error') {
      this.#rejectWith(event.error);
      return;
    }
    const seen = event.type === 'response.created' && this.#seenBefore(event.response.id);
    if (seen) return;
    const at = this.#pending.findIndex((pendingEvent) => acknowledges(pendingEvent.event, event));
    if (at >= 0) this.#pending.splice(at, 1)[0]?.resolve(event);
  }

  /** Milliseconds: when the oldest of those under way was sent. */
  get oldestSentAt(): number | null {
    return this.#pending.find((pendingEvent) => pendingEvent.sentAt !== null)?.sentAt ?? null;
  }

  get size(): number {
    return this.#pending.length;
  }

  /** What no one has confirmed, in order. */
  get events(): IdentifiedEvent[] {
    return this.#pending.flatMap((pendingEvent) => pendingEvent.retryAs);
  }

  /** Nothing more will be sent; what waited can still be looked at. */
  rejectAll(error: Error): void {
    for (const pendingEvent of this.#pending) pendingEvent.reject(error);
  }

  /** It is not sent at all. */
  reject(event_id: string, code: string, message: string): void {
    this.#rejectWith({ type: 'invalid_request_error', code, message, param: null, event_id });
  }

  #rejectWith(error: ErrorBody): void {
    const at = this.#pending.findIndex((pendingEvent) => pendingEvent.event.event_id === error.event_id);
    if (at >= 0) this.#pending.splice(at, 1)[0]?.reject(new Refused(error));
  }

  #seenBefore(id: string): boolean {
    const known = this.#seenResponses.has(id);
    this.#seenResponses.add(id);
    const [oldest] = this.#seenResponses;
    if (this.#seenResponses.size > SEEN_RESPONSES_MAX && oldest !== undefined) {
      this.#seenResponses.delete(oldest);
    }
    return known;
  }
}

/** Whether `got` is the server's word that it has done `sent`. */
function acknowledges(sent: ClientEvent, received: ServerEvent): boolean {
  switch (sent.type) {
    case 'session.update':
      return received.type === 'session.updated' && !received.session.resume?.resumed;
    case 'session.close':
      return received.type === 'session.closed';
    case 'conversation.item.create':
      return received.type === 'conversation.item.added' && received.item.id === sent.item.id;
    case 'conversation.item.retrieve':
      return received.type === 'conversation.item.retrieved' && received.item.id === sent.item_id;
    case 'conversation.item.truncate':
      return received.type === 'conversation.item.truncated' && received.item_id === sent.item_id;
    case 'conversation.item.delete':
      return received.type === 'conversation.item.deleted' && received.item_id === sent.item_id;
    case 'response.create':
      return received.type === 'response.created';
    case 'response.cancel':
      return received.type === 'response.done';
    case 'input_text_buffer.append':
    case 'input_text_buffer.replace':
      return received.type === 'input_text_buffer.appended';
    case 'input_text_buffer.clear':
      return received.type === 'input_text_buffer.cleared';
    case 'input_text_buffer.commit':
      return received.type === 'input_text_buffer.committed';
  }
}

/**
 * Outbox of unacknowledged events. Pure bookkeeping, without sockets or clocks.
 *
 * An event stays in the outbox until the server acknowledges it. After a lost connection it is sent
 * again, in order and with the same event_id, which the server uses as an idempotency key.
 */

import type { CloseInfo } from './close_codes.js';
import type { ClientEvent, ErrorBody, ServerEvent } from './events.js';

/** The server refused one event. The session is unchanged and the connection stays open. */
export class EventRefusedError extends Error {
  readonly code: string | null;
  /** The field that caused the error. */
  readonly param: string | null;

  constructor(error: ErrorBody) {
    super(error.message);
    this.name = 'EventRefusedError';
    this.code = error.code;
    this.param = error.param;
  }
}

/** The connection is closed for good: the client does not reconnect by itself. */
export class ConnectionClosedError extends Error {
  /** Code of the server's last error, or `close_CODE`; `disconnected` after a call of `close`. */
  readonly code: string;
  readonly closeInfo: CloseInfo | null;

  constructor(code: string, message: string, closeInfo: CloseInfo | null = null) {
    super(message);
    this.name = 'ConnectionClosedError';
    this.code = code;
    this.closeInfo = closeInfo;
  }
}

export type IdentifiedEvent = ClientEvent & { event_id: string };

export interface Receipt {
  readonly eventId: string;
  /** Resolves with the acknowledging event; rejects with EventRefusedError or ConnectionClosedError. */
  readonly acknowledged: Promise<ServerEvent>;
}

interface PendingEvent {
  event: IdentifiedEvent;
  /** The events to send instead after a lost connection. */
  resendAs: IdentifiedEvent[];
  /** Time at which the event was sent on this connection, in milliseconds; null if it was not. */
  sentAt: number | null;
  acknowledged: Promise<ServerEvent>;
  resolve: (event: ServerEvent) => void;
  reject: (error: Error) => void;
}

const noop = (): void => undefined;

const SEEN_RESPONSES_MAX = 64;

export class Outbox {
  #pending: PendingEvent[] = [];
  /** Responses already announced; a repeated `response.created` acknowledges nothing. */
  readonly #seenResponses = new Set<string>();

  /** Queue `event`. After a lost connection `resendAs` is sent instead; its last event has the same id. */
  add(event: IdentifiedEvent, resendAs: IdentifiedEvent[] = [event], atFront = false): Receipt {
    let resolve: PendingEvent['resolve'] = noop;
    let reject: PendingEvent['reject'] = noop;
    const acknowledged = new Promise<ServerEvent>((resolveReceipt, rejectReceipt) => {
      [resolve, reject] = [resolveReceipt, rejectReceipt];
    });
    const pendingEvent = { event, resendAs, sentAt: null, acknowledged, resolve, reject };
    if (atFront) this.#pending.unshift(pendingEvent);
    else this.#pending.push(pendingEvent);
    acknowledged.catch(() => undefined); // receipts may be ignored without an unhandled rejection
    return { eventId: event.event_id, acknowledged };
  }

  /** Returns the events not yet sent on this connection and marks them as sent: all, or only the one
   * with `onlyId`. */
  takeUnsent(now: number, onlyId?: string): IdentifiedEvent[] {
    const unsent = this.#pending.filter(
      ({ sentAt, event }) => sentAt === null && (onlyId ?? event.event_id) === event.event_id,
    );
    for (const pendingEvent of unsent) pendingEvent.sentAt = now;
    return unsent.map((pendingEvent) => pendingEvent.event);
  }

  /** Remove an event without resolving its receipt. */
  remove(eventId: string): void {
    this.#pending = this.#pending.filter(({ event }) => event.event_id !== eventId);
  }

  /** Mark every unacknowledged event as unsent, because the connection was lost. */
  markUnsent(): void {
    this.#pending = this.#pending.flatMap((pendingEvent) => {
      if (pendingEvent.sentAt === null) return [pendingEvent];
      const { event, resendAs, acknowledged } = pendingEvent;
      const [before, last] = [resendAs.slice(0, -1), resendAs.at(-1) ?? event];
      const unobserved = { sentAt: null, acknowledged, resolve: noop, reject: noop };
      return [
        ...before.map((event) => ({ event, resendAs: [event], ...unobserved })),
        { ...pendingEvent, event: last, resendAs: [last], sentAt: null },
      ];
    });
  }

  /** Settle the event that `event` acknowledges or refuses. Returns the id of an acknowledged event. */
  receive(event: ServerEvent): string | null {
    if (event.type === 'error') {
      this.#rejectWith(event.error);
      return null;
    }
    const seen = event.type === 'response.created' && this.#seenBefore(event.response.id);
    if (seen) return null;
    const index = this.#pending.findIndex((pendingEvent) => acknowledges(pendingEvent.event, event));
    const acknowledged = index < 0 ? undefined : this.#pending.splice(index, 1)[0];
    acknowledged?.resolve(event);
    return acknowledged?.event.event_id ?? null;
  }

  /** Take the next announcement of a response as an acknowledgement, though it was announced before. */
  expectAgain(responseId: string): void {
    this.#seenResponses.delete(responseId);
  }

  /** Time at which the oldest unacknowledged event was sent, in milliseconds. */
  get oldestSentAt(): number | null {
    return this.#pending.find((pendingEvent) => pendingEvent.sentAt !== null)?.sentAt ?? null;
  }

  get size(): number {
    return this.#pending.length;
  }

  /** Unacknowledged events in order, as they would be sent again. */
  get events(): IdentifiedEvent[] {
    return this.#pending.flatMap((pendingEvent) => pendingEvent.resendAs);
  }

  /** Resolves once every event so far has been acknowledged or refused. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#pending.map((pendingEvent) => pendingEvent.acknowledged));
  }

  /** Reject every receipt. The events stay readable in `events`. */
  rejectAll(error: Error): void {
    for (const pendingEvent of this.#pending) pendingEvent.reject(error);
  }

  /** Reject an event that cannot be sent. */
  reject(event_id: string, code: string, message: string): void {
    this.#rejectWith({ type: 'invalid_request_error', code, message, param: null, event_id });
  }

  #rejectWith(error: ErrorBody): void {
    const index = this.#pending.findIndex((pendingEvent) => pendingEvent.event.event_id === error.event_id);
    if (index >= 0) this.#pending.splice(index, 1)[0]?.reject(new EventRefusedError(error));
  }

  #seenBefore(id: string): boolean {
    const seen = this.#seenResponses.has(id);
    this.#seenResponses.add(id);
    const [oldest] = this.#seenResponses;
    if (this.#seenResponses.size > SEEN_RESPONSES_MAX && oldest !== undefined) {
      this.#seenResponses.delete(oldest);
    }
    return seen;
  }
}

/** Returns whether `received` acknowledges `sent`. */
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

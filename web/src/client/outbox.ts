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

export type Named = ClientEvent & { event_id: string };

export interface Receipt {
  readonly eventId: string;
  /** The event that acknowledges it. Rejects with Refused, or Ended. */
  readonly acknowledged: Promise<ServerEvent>;
}

interface Waiting {
  event: Named;
  /** What to send when the connection was lost meanwhile. */
  again: Named[];
  /** When it went out on this connection, milliseconds; null: it has not. */
  sentAt: number | null;
  resolve: (event: ServerEvent) => void;
  reject: (error: Error) => void;
}

const nobody = (): void => undefined;

const KNOWN_RESPONSES_MAX = 64;

export class Outbox {
  #waiting: Waiting[] = [];
  /** Responses that have been announced: to hear of one again acknowledges nothing. */
  readonly #responses = new Set<string>();

  /** `again` is what to send instead of `event` after a loss; the last of it has the same id. */
  put(event: Named, again: Named[] = [event], first = false): Receipt {
    const acknowledged = new Promise<ServerEvent>((resolve, reject) => {
      const waiting = { event, again, sentAt: null, resolve, reject };
      if (first) this.#waiting.unshift(waiting);
      else this.#waiting.push(waiting);
    });
    acknowledged.catch(() => undefined); // who does not ask is not told
    return { eventId: event.event_id, acknowledged };
  }

  /** Those that have not gone out on this connection, which they now do; `only` one of them. */
  take(now: number, only?: string): Named[] {
    const due = this.#waiting.filter(
      ({ sentAt, event }) => sentAt === null && (only ?? event.event_id) === event.event_id,
    );
    for (const waiting of due) waiting.sentAt = now;
    return due.map((waiting) => waiting.event);
  }

  /** Nobody waits for this one any more. */
  drop(eventId: string): void {
    this.#waiting = this.#waiting.filter(({ event }) => event.event_id !== eventId);
  }

  /** The connection is lost: all that is not acknowledged goes out again. */
  lost(): void {
    this.#waiting = this.#waiting.flatMap((waiting) => {
      if (waiting.sentAt === null) return [waiting];
      const [before, last] = [waiting.again.slice(0, -1), waiting.again.at(-1) ?? waiting.event];
      const forNobody = { sentAt: null, resolve: nobody, reject: nobody };
      return [
        ...before.map((event) => ({ event, again: [event], ...forNobody })),
        { ...waiting, event: last, again: [last], sentAt: null },
      ];
    });
  }

  hear(event: ServerEvent): void {
    if (event.type === 'error') {
      this.#drop(event.error);
      return;
    }
    const known = event.type === 'response.created' && this.#knows(event.response.id);
    if (known) return;
    const at = this.#waiting.findIndex((waiting) => acknowledges(waiting.event, event));
    if (at >= 0) this.#waiting.splice(at, 1)[0]?.resolve(event);
  }

  /** Milliseconds: when the oldest of those under way was sent. */
  get oldestSentAt(): number | null {
    return this.#waiting.find((waiting) => waiting.sentAt !== null)?.sentAt ?? null;
  }

  get size(): number {
    return this.#waiting.length;
  }

  /** What no one has confirmed, in order. */
  get events(): Named[] {
    return this.#waiting.flatMap((waiting) => waiting.again);
  }

  /** Nothing more will be sent; what waited can still be looked at. */
  end(error: Error): void {
    for (const waiting of this.#waiting) waiting.reject(error);
  }

  /** It is not sent at all. */
  refuse(event_id: string, code: string, message: string): void {
    this.#drop({ type: 'invalid_request_error', code, message, param: null, event_id });
  }

  #drop(error: ErrorBody): void {
    const at = this.#waiting.findIndex((waiting) => waiting.event.event_id === error.event_id);
    if (at >= 0) this.#waiting.splice(at, 1)[0]?.reject(new Refused(error));
  }

  #knows(id: string): boolean {
    const known = this.#responses.has(id);
    this.#responses.add(id);
    const [oldest] = this.#responses;
    if (this.#responses.size > KNOWN_RESPONSES_MAX && oldest !== undefined) {
      this.#responses.delete(oldest);
    }
    return known;
  }
}

/** Whether `got` is the server's word that it has done `sent`. */
function acknowledges(sent: ClientEvent, got: ServerEvent): boolean {
  switch (sent.type) {
    case 'session.update':
      return got.type === 'session.updated' && !got.session.resume?.resumed;
    case 'session.close':
      return got.type === 'session.closed';
    case 'conversation.item.create':
      return got.type === 'conversation.item.added' && got.item.id === sent.item.id;
    case 'conversation.item.retrieve':
      return got.type === 'conversation.item.retrieved' && got.item.id === sent.item_id;
    case 'conversation.item.truncate':
      return got.type === 'conversation.item.truncated' && got.item_id === sent.item_id;
    case 'conversation.item.delete':
      return got.type === 'conversation.item.deleted' && got.item_id === sent.item_id;
    case 'response.create':
      return got.type === 'response.created';
    case 'response.cancel':
      return got.type === 'response.done';
    case 'input_text_buffer.append':
    case 'input_text_buffer.replace':
      return got.type === 'input_text_buffer.appended';
    case 'input_text_buffer.clear':
      return got.type === 'input_text_buffer.cleared';
    case 'input_text_buffer.commit':
      return got.type === 'input_text_buffer.committed';
  }
}

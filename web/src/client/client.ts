/**
 * A client whose conversation survives the loss of connections.
 *
 * The outbox holds every event until the server acknowledges it, server events update the local
 * conversation, and a lost connection is resumed after the last event received. Events sent while
 * disconnected are queued.
 */

import { closing } from './close_codes.js';
import {
  type Begun,
  Connection,
  type ConnectionOptions,
  type ConnectionState,
} from './connection.js';
import { Conversation, type Change } from './conversation.js';
import { Draft } from './draft.js';
import type {
  ClientEvent,
  ErrorBody,
  NewItem,
  Residency,
  ResponseSettings,
  ServerEvent,
  ServerEventOf,
  ServerEventType,
  Session,
  SessionSettings,
} from './events.js';
import { EventIds } from './event_ids.js';
import { Listeners } from './listeners.js';
import type { Observable, Unsubscribe } from './observable.js';
import { Ended, Outbox, type Receipt } from './outbox.js';
import { rehydrate, settingsOf } from './rehydrate.js';

/** Resume cursor: what a client needs to resume a session, also from another page. */
export interface Position {
  sessionId: string;
  lastEventId: string | null;
  token?: string;
}

export interface Options extends ConnectionOptions {
  /** ws:// or wss:// URL up to and including /v1/realtime. */
  url: string;
  model?: string;
  /** Settings of a new session. */
  session?: SessionSettings;
  /** Resume this session. */
  resume?: Position;
  /** Fork another session, up to and including the item `at`, or all of it without `at`. A
   * short-lived key requires that session's resume token (`position.token`). */
  fork?: { session: string; at?: string; token?: string };
  /** Rebuild a session that the server has lost (default), or end. */
  rebuild?: boolean;
  /** Maximum number of queued events; `send` throws beyond it. */
  pendingMax?: number;
}

/** Error codes after which the session can be rebuilt in a new one. */
const SESSION_LOST_CODES = new Set(['session_not_found', 'session_expired', 'resume_gap']);

export class RealtimeClient {
  readonly conversation = new Conversation();
  readonly draft: Draft;
  readonly #options: Options;
  readonly #connection: Connection;
  readonly #outbox = new Outbox();
  readonly #ids = new EventIds();
  readonly #received = new Listeners<ServerEvent>();
  readonly #sent = new Listeners<ClientEvent>();
  readonly #changes = new Listeners<{ type: string; change: NonNullable<Change> }>();
  #session: Session | null = null;
  #position: Position | null;
  /** Last error that names no client event; explains why the server closes the connection. */
  #lastError: ErrorBody | null = null;
  #rebuilding = false;
  /** Id of the barrier event whose reply follows every missed event; null if none is pending. */
  #barrierId: string | null = null;
  /** Whether a response was in progress when the server began to send a snapshot. */
  #respondingBeforeSnapshot = false;

  constructor(options: Options) {
    this.#options = options;
    this.#position = options.resume ?? null;
    this.draft = new Draft((event, retryAs) => this.send(event, retryAs));
    this.#connection = new Connection(options, {
      url: () => this.#url(),
      onEvent: (event) => {
        this.#onEvent(event);
      },
      onClose: (code, reason) => {
        this.#onClose(code, reason);
      },
      onDisconnect: () => {
        this.#onDisconnect();
      },
      oldestUnacknowledgedAt: () => this.#outbox.oldestSentAt,
    });
    this.state.subscribe((state) => {
      if (state.phase === 'ended') this.#outbox.rejectAll(state.error);
    });
  }

  get state(): Observable<ConnectionState> {
    return this.#connection.state;
  }

  /** The session as last described by the server. */
  get session(): Session | null {
    return this.#session;
  }

  /** Resume cursor; advances with every event. */
  get position(): Position | null {
    return this.#position;
  }

  /** Unacknowledged events; a page that resumes the session sends them again with the same ids. */
  get pending(): readonly ClientEvent[] {
    return this.#outbox.events;
  }

  // ---------------------------------------------------------------- listeners

  /** Call `listener` with each server event of one type, or of any type with `'*'`. */
  on(type: '*', listener: (event: ServerEvent) => void): Unsubscribe;
  on<T extends ServerEventType>(type: T, listener: (event: ServerEventOf<T>) => void): Unsubscribe;
  on(type: string, listener: (event: never) => void): Unsubscribe {
    return this.#received.add(type, listener as (event: ServerEvent) => void);
  }

  /** Call `listener` when the conversation has changed. */
  onChange(listener: (change: NonNullable<Change>) => void): Unsubscribe {
    return this.#changes.add('*', ({ change }) => {
      listener(change);
    });
  }

  /** Call `listener` with each event sent, including retries. */
  onSent(listener: (event: ClientEvent) => void): Unsubscribe {
    return this.#sent.add('*', listener);
  }

  // ---------------------------------------------------------------- sending

  /** Send an event now, or once connected. After a lost connection `retryAs` is sent instead; its last
   * event gets the same id. Throws Ended if the client has ended, RangeError if the queue is full. */
  send(event: ClientEvent, retryAs: ClientEvent[] = []): Receipt {
    const state = this.state.value;
    if (state.phase === 'ended') throw state.error;
    if (this.#outbox.size >= (this.#options.pendingMax ?? 4096)) {
      throw new RangeError('too many events are queued for the connection');
    }
    const identified = this.#ids.withIds(event);
    const retryEvents = retryAs.map((one) => this.#ids.withIds(one, one.event_id ?? identified.event_id));
    const receipt = this.#outbox.add(identified, retryEvents.length > 0 ? retryEvents : [identified]);
    this.#flush();
    return receipt;
  }

  /** Create a complete user message; see `draft` for one that is being typed. */
  say(text: string): Receipt {
    const content = [{ type: 'input_text' as const, text }];
    return this.create({ type: 'message', role: 'user', content });
  }

  /** Create an item after `previous_item_id`, or at the end. */
  create(item: NewItem, previous_item_id?: string): Receipt {
    const after = previous_item_id === undefined ? {} : { previous_item_id };
    return this.send({ type: 'conversation.item.create', item, ...after });
  }

  /** Request a response. */
  respond(response?: ResponseSettings): Receipt {
    return this.send({ type: 'response.create', ...(response && { response }) });
  }

  /** Cancel the response in progress. */
  cancel(): Receipt {
    return this.send({ type: 'response.cancel' });
  }

  /** Update the session's settings. */
  update(session: SessionSettings): Receipt {
    return this.send({ type: 'session.update', session });
  }

  /** Delete an item. */
  delete(item_id: string): Receipt {
    return this.send({ type: 'conversation.item.delete', item_id });
  }

  /** Truncate an assistant message to its first `text_end` code points. */
  truncate(item_id: string, text_end: number): Receipt {
    return this.send({ type: 'conversation.item.truncate', item_id, content_index: 0, text_end });
  }

  // ---------------------------------------------------------------- connection

  connect(): void {
    this.#connection.connect();
  }

  /** Skip the remaining backoff delay. */
  retry(): void {
    this.#connection.retry();
  }

  /** Drop the connection and reconnect. */
  drop(reason = 'the connection was cut'): void {
    this.#connection.disconnect(reason);
  }

  /** Probe the server; reconnect if no acknowledgement arrives within `within_ms` milliseconds. */
  check(within_ms = 5000): void {
    if (this.state.value.phase !== 'open') return;
    this.#connection.startLivenessDeadline(within_ms);
    void this.update({}).acknowledged.then(
      () => {
        this.#connection.clearLivenessDeadline();
      },
      () => undefined,
    );
  }

  /** Disconnect for good. The session stays resumable from `position` for a limited time. */
  leave(): void {
    this.#connection.end(new Ended('left', 'This client has disconnected.'));
  }

  /** Close the session for good. */
  async close(): Promise<void> {
    await this.send({ type: 'session.close' }).acknowledged;
  }

  #url(): string {
    const url = new URL(this.#options.url);
    const { model, fork } = this.#options;
    if (model !== undefined) url.searchParams.set('model', model);
    if (this.#position !== null) {
      const { sessionId, lastEventId, token } = this.#position;
      url.searchParams.set('session_id', sessionId);
      if (lastEventId !== null) url.searchParams.set('last_event_id', lastEventId);
      if (token !== undefined) url.searchParams.set('resume_token', token);
    } else if (fork !== undefined && !this.#rebuilding) {
      url.searchParams.set('fork', fork.session);
      if (fork.at !== undefined) url.searchParams.set('at', fork.at);
      if (fork.token !== undefined) url.searchParams.set('resume_token', fork.token);
    }
    return url.href;
  }

  #onClose(code: number, reason: string): void {
    const error = this.#lastError;
    const close = closing(code, reason);
    if (error !== null && SESSION_LOST_CODES.has(error.code ?? '')) this.#onSessionLost(error);
    else if (close.recoverable) this.#connection.reconnectAfterBackoff(close.reason);
    else {
      const message = error?.message ?? close.reason;
      this.#connection.end(new Ended(error?.code ?? `close_${code}`, message, close));
    }
  }

  /** Rebuild the session in a new one, or end, because the server has lost it. */
  #onSessionLost(error: ErrorBody | null = null): void {
    const message = error?.message ?? 'The server no longer has this session.';
    if (this.#options.rebuild === false) {
      this.#connection.end(new Ended(error?.code ?? 'session_not_found', message));
      return;
    }
    this.#position = null;
    this.#rebuilding = true;
    this.#connection.reconnectNow(message);
  }

  #onDisconnect(): void {
    if (this.#barrierId !== null) this.#outbox.remove(this.#barrierId);
    this.#barrierId = null;
    this.#lastError = null;
    this.#outbox.markUnsent();
  }

  // ---------------------------------------------------------------- receiving

  #onEvent(event: ServerEvent): void {
    if (event.type === 'session.created' && this.#position !== null) {
      this.#onSessionLost(); // the server created a new session instead of resuming
      return;
    }
    const snapshot =
      event.type === 'session.updated' && event.session.resume?.resumed === 'snapshot';
    if (snapshot) this.#respondingBeforeSnapshot = this.conversation.running !== null;
    this.#outbox.receive(event);
    if (event.type === 'error' && this.#barrierId && event.error.event_id === this.#barrierId) {
      this.#onBarrierPassed();
      return;
    }
    const change = this.conversation.apply(event);
    this.#updateSession(event);
    this.#received.emit(event);
    if (change !== null) this.#changes.emit({ type: change.kind, change });
    if (this.#position !== null && typeof event.event_id === 'string' && event.type !== 'error') {
      this.#position.lastEventId = event.event_id;
    }
  }

  #updateSession(event: ServerEvent): void {
    switch (event.type) {
      case 'session.created':
        this.#onSessionCreated(event.session);
        break;
      case 'session.updated': {
        this.#session = event.session;
        const resume = event.session.resume;
        if (this.#position !== null && resume?.token !== undefined) {
          this.#position.token = resume.token;
        }
        if (resume?.resumed) this.#onOpen(resume.resumed, resume.kv ?? null);
        break;
      }
      case 'error':
        if (event.error.event_id === null) this.#lastError = event.error;
        break;
      default:
        break;
    }
  }

  /** Configure a new session, and rebuild the conversation in it, before sending queued events. */
  #onSessionCreated(session: Session): void {
    const { resume } = session;
    const previousSettings = this.#rebuilding && this.#session ? settingsOf(this.#session) : undefined;
    const settings = previousSettings ?? this.#options.session;
    this.#session = session;
    this.#position = {
      sessionId: session.id,
      lastEventId: null,
      ...(resume?.token !== undefined && { token: resume.token }),
    };
    const setup: ClientEvent[] = [];
    if (settings && Object.keys(settings).length > 0) {
      setup.push({ type: 'session.update', session: settings });
    }
    const forked = this.#options.fork !== undefined && !this.#rebuilding;
    const rehydrates = !forked && this.conversation.items.length > 0;
    if (rehydrates) setup.push(...rehydrate(this.conversation, this.#outbox.events));
    for (const event of setup.reverse()) this.#sendFirst(event);
    this.#rebuilding = false;
    this.#onOpen(rehydrates ? 'rebuilt' : 'new', null);
  }

  #onOpen(begun: Begun, kv: Residency | null): void {
    if (begun !== 'exact') this.draft.unsure();
    this.#connection.markOpen(begun, kv);
    if (begun === 'exact' || begun === 'snapshot') this.#sendBarrier();
    this.draft.renew();
    this.#flush();
  }

  /** Send a barrier: hold back retries until every missed event has been received, because missed
   * events may acknowledge them. The barrier retrieves an item that cannot exist; its error reply
   * follows the missed events, is distinguishable from them, and changes nothing. */
  #sendBarrier(): void {
    const event_id = this.#ids.next('event');
    this.#barrierId = event_id;
    this.#sendFirst({ type: 'conversation.item.retrieve', item_id: event_id, event_id });
  }

  #onBarrierPassed(): void {
    this.#barrierId = null;
    if (this.#respondingBeforeSnapshot && this.conversation.awaitsAnswer) this.respond();
    this.#respondingBeforeSnapshot = false;
    this.#flush();
  }

  /** Queue an event ahead of all others. */
  #sendFirst(event: ClientEvent): void {
    this.#outbox.add(this.#ids.withIds(event), undefined, true);
  }

  #flush(): void {
    if (!this.#connection.open) return;
    for (const event of this.#outbox.takeUnsent(Date.now(), this.#barrierId ?? undefined)) {
      if (this.#connection.send(event)) this.#sent.emit(event);
      else this.#outbox.reject(event.event_id, 'frame_too_large', 'This message is too long to send.');
    }
  }
}

/**
 * A conversation with a Continuo server that outlives its connections.
 *
 * What is sent is kept until the server has acknowledged it (`outbox`), what the server says becomes
 * the conversation, and a connection that is lost is taken up where it was left (`connection`). While
 * there is none nothing is refused: what is sent waits.
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
import { Listeners } from './listeners.js';
import { EventIds } from './event_ids.js';
import type { Observable, Unsubscribe } from './observable.js';
import { Ended, Outbox, type Receipt } from './outbox.js';
import { rehydrate, settingsOf } from './rehydrate.js';

/** Where a conversation was left: enough to come back to it, from another page too. */
export interface Position {
  sessionId: string;
  lastEventId: string | null;
  token?: string;
}

export interface Options extends ConnectionOptions {
  /** ws:// or wss://, up to and including /v1/realtime. */
  url: string;
  model?: string;
  /** How a new session is set up. */
  session?: SessionSettings;
  /** Come back to this conversation. */
  resume?: Position;
  /** Begin as another session was, up to and including an item (all of it without). With a
   * short-lived key the server asks for that session's token (`position.token`). */
  fork?: { session: string; at?: string; token?: string };
  /** Whether to tell a server that has lost the session what was said (default), or to end. */
  rebuild?: boolean;
  /** Events that may wait at most; `send` throws beyond it. */
  pendingMax?: number;
}

/** The server knows this session no more; the conversation can be told to it again. */
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
  /** The last that was about no event of ours: it says why the connection is closed. */
  #lastError: ErrorBody | null = null;
  #rebuilding = false;
  /** The event whose answer says that all is told that was missed; null: it is. */
  #barrierId: string | null = null;
  /** Whether an answer was being made when the server began to tell everything again. */
  #respondingBeforeSnapshot = false;

  constructor(options: Options) {
    this.#options = options;
    this.#position = options.resume ?? null;
    this.draft = new Draft((event, again) => this.send(event, again));
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

  /** As the server last described it. */
  get session(): Session | null {
    return this.#session;
  }

  /** Keep this to come back; it moves with every event. */
  get position(): Position | null {
    return this.#position;
  }

  /** What was sent and is not acknowledged: to be sent again, with its ids, by who comes back. */
  get pending(): readonly ClientEvent[] {
    return this.#outbox.events;
  }

  // ---------------------------------------------------------------- listening

  /** Calls `listener` with each event of a type, or of any (`'*'`). */
  on(type: '*', listener: (event: ServerEvent) => void): Unsubscribe;
  on<T extends ServerEventType>(type: T, listener: (event: ServerEventOf<T>) => void): Unsubscribe;
  on(type: string, listener: (event: never) => void): Unsubscribe {
    return this.#received.add(type, listener as (event: ServerEvent) => void);
  }

  /** Calls `listener` when the conversation has changed. */
  onChange(listener: (change: NonNullable<Change>) => void): Unsubscribe {
    return this.#changes.add('*', ({ change }) => {
      listener(change);
    });
  }

  /** Calls `listener` with each event as it goes out, again if it does so again. */
  onSent(listener: (event: ClientEvent) => void): Unsubscribe {
    return this.#sent.add('*', listener);
  }

  // ---------------------------------------------------------------- speaking

  /** Sends now, or when the connection is back. `again`: what to send instead after a loss, the last
   * of it with the same id.
   * Throws Ended if there will be no connection, RangeError if too much waits already. */
  send(event: ClientEvent, retryAs: ClientEvent[] = []): Receipt {
    const state = this.state.value;
    if (state.phase === 'ended') throw state.error;
    if (this.#outbox.size >= (this.#options.pendingMax ?? 4096)) {
      throw new RangeError('too many events wait for the connection');
    }
    const identified = this.#ids.withIds(event);
    const retryEvents = retryAs.map((one) => this.#ids.withIds(one, one.event_id ?? identified.event_id));
    const receipt = this.#outbox.add(identified, retryEvents.length > 0 ? retryEvents : [identified]);
    this.#flush();
    return receipt;
  }

  /** A message of the user, at once and whole; see `draft` for one that is being typed. */
  say(text: string): Receipt {
    const content = [{ type: 'input_text' as const, text }];
    return this.create({ type: 'message', role: 'user', content });
  }

  create(item: NewItem, previous_item_id?: string): Receipt {
    const after = previous_item_id === undefined ? {} : { previous_item_id };
    return this.send({ type: 'conversation.item.create', item, ...after });
  }

  respond(response?: ResponseSettings): Receipt {
    return this.send({ type: 'response.create', ...(response && { response }) });
  }

  cancel(): Receipt {
    return this.send({ type: 'response.cancel' });
  }

  update(session: SessionSettings): Receipt {
    return this.send({ type: 'session.update', session });
  }

  delete(item_id: string): Receipt {
    return this.send({ type: 'conversation.item.delete', item_id });
  }

  /** History keeps the first `text_end` code points of what the assistant has said. */
  truncate(item_id: string, text_end: number): Receipt {
    return this.send({ type: 'conversation.item.truncate', item_id, content_index: 0, text_end });
  }

  // ---------------------------------------------------------------- coming and going

  connect(): void {
    this.#connection.connect();
  }

  /** Tries at once if it waits. */
  retry(): void {
    this.#connection.retry();
  }

  /** Takes the connection for lost, and comes back. */
  drop(reason = 'the connection was cut'): void {
    this.#connection.disconnect(reason);
  }

  /** Is the server still there? If it says nothing within `within_ms`, the connection is lost. */
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

  /** Leaves. The session stays for a while, and `position` leads back to it. */
  leave(): void {
    this.#connection.end(new Ended('left', 'This client has left.'));
  }

  /** Ends the session for good. */
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

  /** The server has lost the session. */
  #onSessionLost(error: ErrorBody | null = null): void {
    const message = error?.message ?? 'The server does not know this session any more.';
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

  // ---------------------------------------------------------------- what is heard

  #onEvent(event: ServerEvent): void {
    if (event.type === 'session.created' && this.#position !== null) {
      this.#onSessionLost(); // it did not take us back, and began another one
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

  /** A new session: it is set up, and told what there was, before anything else is said. */
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
    const first: ClientEvent[] = [];
    if (settings && Object.keys(settings).length > 0) {
      first.push({ type: 'session.update', session: settings });
    }
    const forked = this.#options.fork !== undefined && !this.#rebuilding;
    const rehydrates = !forked && this.conversation.items.length > 0;
    if (rehydrates) first.push(...rehydrate(this.conversation, this.#outbox.events));
    for (const event of first.reverse()) this.#sendFirst(event);
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

  /** What was missed may acknowledge what would be sent again: that waits until all of it is told.
   * So we ask for an item that there cannot be: the answer comes behind what was missed, cannot be
   * taken for a part of it, and changes nothing. */
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

  /** Before all that waits. */
  #sendFirst(event: ClientEvent): void {
    this.#outbox.add(this.#ids.withIds(event), undefined, true);
  }

  #flush(): void {
    if (!this.#connection.open) return;
    for (const event of this.#outbox.takeUnsent(Date.now(), this.#barrierId ?? undefined)) {
      if (this.#connection.send(event)) this.#sent.emit(event);
      else this.#outbox.reject(event.event_id, 'frame_too_large', 'This is too long to be sent.');
    }
  }
}

/**
 * Realtime client whose conversation survives lost connections.
 *
 * The outbox holds every event until the server acknowledges it, server events update the local
 * conversation, and a lost connection is resumed after the last event received. Events sent while
 * disconnected are queued.
 */

import { describeCloseCode } from './close_codes.js';
import {
  Connection,
  type ConnectionOptions,
  type ConnectionState,
  type ResumeOutcome,
} from './connection.js';
import { Conversation, type ConversationChange } from './conversation.js';
import { Draft } from './draft.js';
import type {
  ClientEvent,
  ErrorBody,
  KVResidency,
  NewItem,
  ResponseSettings,
  ServerEvent,
  ServerEventOf,
  ServerEventType,
  Session,
  SessionSettings,
} from './events.js';
import { IdGenerator } from './id_generator.js';
import { Listeners } from './listeners.js';
import { type Observable, Subject, type Unsubscribe } from './observable.js';
import { ConnectionClosedError, Outbox, type Receipt } from './outbox.js';
import { recreateItems, settingsOf } from './rehydrate.js';
import { ResponseRouting } from './response_routing.js';
import { type ResponseClient, ResponseStream } from './response_stream.js';
import { declareTools, type HandledTool } from './tools.js';

/** Session to resume, and the id of the last event received from it. Applications store it to resume from
 * another page; its field names are part of that format. */
export interface ResumePoint {
  sessionId: string;
  lastEventId: string | null;
  token?: string;
}

/** Session to fork, up to and including the item `itemId`, or all of it without `itemId`. */
export interface ForkOptions {
  sessionId: string;
  itemId?: string;
  /** Resume token of the session (`resumePoint.token`); required with a short-lived key. */
  token?: string;
}

/** Changed settings of a fork, and the last item that it shares. */
export interface ForkSettings extends SessionSettings {
  at?: string;
}

export interface RealtimeClientOptions extends ConnectionOptions {
  /** ws:// or wss:// URL up to and including /v1/realtime. */
  url: string;
  model?: string;
  /** Settings of a new session. */
  session?: SessionSettings;
  /** Tools of a new session, by name, beside those of `session`. The client answers calls in responses to
   * `ask` and `respond`: it runs the handler, sends the result, and requests the next response. */
  tools?: Readonly<Record<string, HandledTool>>;
  /** Resume this session. */
  resume?: ResumePoint;
  /** Begin with a fork of another session. */
  fork?: ForkOptions;
  /** Rehydrate a session that the server has lost (default), or close the connection. */
  rehydrate?: boolean;
  /** Maximum number of unacknowledged events; `send` throws beyond it. */
  pendingEventsMax?: number;
}

/** Error codes that report a lost session, which can be rehydrated in a new one. */
const SESSION_LOST_CODES = new Set(['session_not_found', 'session_expired', 'resume_gap']);

/** How long `close` waits for acknowledgements, in milliseconds. */
const CLOSE_TIMEOUT_MS = 5000;

export class RealtimeClient {
  readonly conversation = new Conversation();
  readonly draft: Draft;
  readonly #options: RealtimeClientOptions;
  /** Tools whose calls are answered, by name. */
  #tools: Readonly<Record<string, HandledTool>>;
  readonly #connection: Connection;
  readonly #outbox = new Outbox();
  readonly #ids = new IdGenerator();
  readonly #responses = new ResponseRouting();
  readonly #eventListeners = new Listeners<ServerEvent>();
  readonly #sentListeners = new Listeners<ClientEvent>();
  readonly #changeListeners = new Listeners<{ type: string; change: ConversationChange }>();
  #session: Session | null = null;
  #resumePoint: ResumePoint | null;
  /** Last error that names no client event; explains why the server closes the connection. */
  #lastError: ErrorBody | null = null;
  #rehydrating = false;
  /** Id of the barrier event whose reply follows every missed event; null if none is pending. */
  #barrierId: string | null = null;
  readonly #caughtUp = new Subject(false);
  /** Whether a response was in progress when the server began to send a snapshot. */
  #respondingBeforeSnapshot = false;

  constructor(options: RealtimeClientOptions) {
    this.#options = options;
    this.#tools = options.tools ?? {};
    this.#resumePoint = options.resume ?? null;
    this.draft = new Draft((event, resendAs) => this.send(event, resendAs));
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
      if (state.phase !== 'closed') return;
      this.#outbox.rejectAll(state.error);
      this.#responses.failAll(state.error);
    });
  }

  get state(): Observable<ConnectionState> {
    return this.#connection.state;
  }

  /** Whether the connection is open and every missed event has been received. Until then a missed event may
   * acknowledge an event that is sent, though it answers an earlier one. */
  get caughtUp(): Observable<boolean> {
    return this.#caughtUp;
  }

  /** The session as last described by the server. */
  get session(): Session | null {
    return this.#session;
  }

  /** Point from which the session can be resumed; advances with every event received. */
  get resumePoint(): ResumePoint | null {
    return this.#resumePoint;
  }

  /** Unacknowledged events; a page that resumes the session sends them again with the same ids. */
  get pendingEvents(): readonly ClientEvent[] {
    return this.#outbox.events;
  }

  // ---------------------------------------------------------------- listeners

  /** Call `listener` with each server event of one type, or of any type with `'*'`. */
  on(type: '*', listener: (event: ServerEvent) => void): Unsubscribe;
  on<T extends ServerEventType>(type: T, listener: (event: ServerEventOf<T>) => void): Unsubscribe;
  on(type: string, listener: (event: never) => void): Unsubscribe {
    return this.#eventListeners.add(type, listener as (event: ServerEvent) => void);
  }

  /** Call `listener` with what changed in the conversation; `conversation.items` is the whole list. */
  onConversationChange(listener: (change: ConversationChange) => void): Unsubscribe {
    return this.#changeListeners.add('*', ({ change }) => {
      listener(change);
    });
  }

  /** Call `listener` with each event sent, including each time it is sent again. */
  onSent(listener: (event: ClientEvent) => void): Unsubscribe {
    return this.#sentListeners.add('*', listener);
  }

  // ---------------------------------------------------------------- responses

  /** Send a user message and request a response to it. Await the response for its text, or iterate over
   * its deltas. */
  ask(text: string, settings: ResponseSettings = {}): ResponseStream {
    return this.#stream(settings, () => this.sendUserMessage(text).acknowledged);
  }

  /** Request a response to the conversation as it is. */
  respond(settings: ResponseSettings = {}): ResponseStream {
    return this.#stream(settings, () => Promise.resolve());
  }

  #stream(settings: ResponseSettings, prepare: () => Promise<unknown>): ResponseStream {
    const client: ResponseClient = {
      conversation: this.conversation,
      tools: this.#tools,
      newEventId: () => this.#ids.next('event'),
      send: (event) => this.send(event),
      requestResponse: (stream, request) => {
        this.#responses.expect(stream, request);
        this.#responses.watch(this.send(request));
      },
    };
    const stream = new ResponseStream(client, settings, prepare);
    this.#responses.add(stream);
    return stream;
  }

  // ---------------------------------------------------------------- sending

  /** Send an event now, or once connected. After a lost connection `resendAs` is sent instead; its last
   * event gets the same id. Throws ConnectionClosedError if the connection is closed for good, RangeError
   * if `pendingEventsMax` events are unacknowledged. */
  send(event: ClientEvent, resendAs: ClientEvent[] = []): Receipt {
    const state = this.state.value;
    if (state.phase === 'closed') throw state.error;
    if (this.#outbox.size >= (this.#options.pendingEventsMax ?? 4096)) {
      throw new RangeError('too many events are queued for the connection');
    }
    const identified = this.#ids.withIds(event);
    const resendEvents = resendAs.map((one) => this.#ids.withIds(one, one.event_id ?? identified.event_id));
    const receipt = this.#outbox.add(identified, resendEvents.length > 0 ? resendEvents : [identified]);
    this.#flush();
    return receipt;
  }

  /** Create a complete user message; see `draft` for one that is being typed. */
  sendUserMessage(text: string): Receipt {
    const content = [{ type: 'input_text' as const, text }];
    return this.createItem({ type: 'message', role: 'user', content });
  }

  /** Create an item after `previous_item_id`, or at the end. */
  createItem(item: NewItem, previous_item_id?: string): Receipt {
    const after = previous_item_id === undefined ? {} : { previous_item_id };
    return this.send({ type: 'conversation.item.create', item, ...after });
  }

  /** Request a response. */
  createResponse(response?: ResponseSettings): Receipt {
    return this.send({ type: 'response.create', ...(response && { response }) });
  }

  /** Cancel the response in progress. */
  cancelResponse(): Receipt {
    return this.send({ type: 'response.cancel' });
  }

  /** Update the session's settings. */
  updateSession(session: SessionSettings): Receipt {
    return this.send({ type: 'session.update', session });
  }

  /** Delete an item. */
  deleteItem(item_id: string): Receipt {
    return this.send({ type: 'conversation.item.delete', item_id });
  }

  /** Delete all items after `itemId`; all items if it is null. The KV of those before them stays. Throws
   * RangeError if there is no such item, EventRefusedError if the server refuses a deletion. */
  async rewind(itemId: string | null): Promise<void> {
    const { items } = this.conversation;
    const position = items.findIndex(({ id }) => id === itemId);
    if (itemId !== null && position < 0) throw new RangeError(`there is no item '${itemId}'`);
    const later = items.slice(position + 1).reverse();
    await Promise.all(later.map(({ id }) => this.deleteItem(id).acknowledged));
  }

  /** Truncate an assistant message to its first `text_end` code points. */
  truncateItem(item_id: string, text_end: number): Receipt {
    return this.send({ type: 'conversation.item.truncate', item_id, content_index: 0, text_end });
  }

  // ---------------------------------------------------------------- connection

  /** Returns a client of a new session with the settings, the items and the KV of this one, up to and
   * including the item `at`, or with all items. `settings` are changed in the new session. Connect it while
   * this session exists. Throws Error if there is no session yet. */
  fork({ at, ...settings }: ForkSettings = {}): RealtimeClient {
    if (this.#resumePoint === null) throw new Error('there is no session to fork yet');
    const { sessionId, token } = this.#resumePoint;
    const source = { sessionId, ...(at !== undefined && { itemId: at }), ...(token !== undefined && { token }) };
    const { resume: _resume, tools: _tools, ...options } = this.#options;
    const forked = new RealtimeClient({ ...options, session: settings, fork: source });
    forked.#tools = this.#tools; // the session declares them already
    return forked;
  }

  connect(): void {
    this.#connection.connect();
  }

  /** Skip the remaining backoff delay. */
  retryNow(): void {
    this.#connection.retryNow();
  }

  /** Close the current socket, if any, and reconnect after the backoff delay. */
  reconnect(reason = 'the connection was cut'): void {
    this.#connection.reconnectAfterBackoff(reason);
  }

  /** Ping the server; reconnect if no acknowledgement arrives within `timeout_ms` milliseconds. */
  checkLiveness(timeout_ms = 5000): void {
    if (this.state.value.phase !== 'open') return;
    this.#connection.startLivenessDeadline(timeout_ms);
    void this.updateSession({}).acknowledged.then(
      () => {
        this.#connection.clearLivenessDeadline();
      },
      () => undefined,
    );
  }

  /** Leave: wait up to `timeout_ms` milliseconds for the acknowledgement of what was sent, then disconnect
   * for good; at once if `timeout_ms` is 0. The session can be resumed from `resumePoint` for a limited
   * time. */
  async close(timeout_ms = CLOSE_TIMEOUT_MS): Promise<void> {
    const { phase } = this.state.value;
    if (timeout_ms > 0 && phase !== 'idle' && phase !== 'closed') {
      await withTimeout(this.#outbox.settled(), timeout_ms);
    }
    this.#connection.close(new ConnectionClosedError('disconnected', 'This client has disconnected.'));
  }

  /** Delete the session on the server, and disconnect for good. */
  async deleteSession(): Promise<void> {
    await this.send({ type: 'session.close' }).acknowledged;
    await this.close(0);
  }

  #url(): string {
    const url = new URL(this.#options.url);
    const { model, fork } = this.#options;
    if (model !== undefined) url.searchParams.set('model', model);
    if (this.#resumePoint !== null) {
      const { sessionId, lastEventId, token } = this.#resumePoint;
      url.searchParams.set('session_id', sessionId);
      if (lastEventId !== null) url.searchParams.set('last_event_id', lastEventId);
      if (token !== undefined) url.searchParams.set('resume_token', token);
    } else if (fork !== undefined && !this.#rehydrating) {
      url.searchParams.set('fork', fork.sessionId);
      if (fork.itemId !== undefined) url.searchParams.set('at', fork.itemId);
      if (fork.token !== undefined) url.searchParams.set('resume_token', fork.token);
    }
    return url.href;
  }

  #onClose(code: number, reason: string): void {
    const error = this.#lastError;
    const closeInfo = describeCloseCode(code, reason);
    if (error !== null && SESSION_LOST_CODES.has(error.code ?? '')) this.#onSessionLost(error);
    else if (closeInfo.recoverable) this.#connection.reconnectAfterBackoff(closeInfo.reason);
    else {
      const message = error?.message ?? closeInfo.reason;
      const closeError = new ConnectionClosedError(error?.code ?? `close_${code}`, message, closeInfo);
      this.#connection.close(closeError);
    }
  }

  /** The server has lost the session: rehydrate it in a new one, or close the connection. */
  #onSessionLost(error: ErrorBody | null = null): void {
    const message = error?.message ?? 'The server no longer has this session.';
    if (this.#options.rehydrate === false) {
      this.#connection.close(new ConnectionClosedError(error?.code ?? 'session_not_found', message));
      return;
    }
    this.#resumePoint = null;
    this.#rehydrating = true;
    this.#connection.reconnectNow(message);
  }

  #onDisconnect(): void {
    if (this.#barrierId !== null) this.#outbox.remove(this.#barrierId);
    this.#barrierId = null;
    this.#lastError = null;
    this.#outbox.markUnsent();
    this.#caughtUp.set(false);
  }

  // ---------------------------------------------------------------- receiving

  #onEvent(event: ServerEvent): void {
    if (event.type === 'session.created' && this.#resumePoint !== null) {
      this.#onSessionLost(); // the server created a new session instead of resuming
      return;
    }
    const snapshot =
      event.type === 'session.updated' && event.session.resume?.resumed === 'snapshot';
    if (snapshot) {
      const active = this.conversation.activeTurn;
      this.#respondingBeforeSnapshot = active !== null && !this.#responses.has(active.id);
      this.#responses.expectAnnouncements();
    }
    const acknowledgedId = this.#outbox.receive(event);
    if (event.type === 'error' && this.#barrierId && event.error.event_id === this.#barrierId) {
      this.#onBarrierPassed();
      return;
    }
    const change = this.conversation.apply(event);
    this.#updateSession(event);
    this.#responses.receive(event, acknowledgedId);
    this.#eventListeners.emit(event);
    if (change !== null) this.#emitChanges([change]);
    if (this.#resumePoint !== null && typeof event.event_id === 'string' && event.type !== 'error') {
      this.#resumePoint.lastEventId = event.event_id;
    }
  }

  #emitChanges(changes: ConversationChange[]): void {
    for (const change of changes) this.#changeListeners.emit({ type: change.kind, change });
  }

  #updateSession(event: ServerEvent): void {
    switch (event.type) {
      case 'session.created':
        this.#onSessionCreated(event.session);
        break;
      case 'session.updated': {
        this.#session = event.session;
        const resume = event.session.resume;
        if (this.#resumePoint !== null && resume?.token !== undefined) {
          this.#resumePoint.token = resume.token;
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

  /** Configure a new session, and rehydrate the conversation in it, before sending queued events. */
  #onSessionCreated(session: Session): void {
    const { resume } = session;
    const previousSettings = this.#rehydrating && this.#session ? settingsOf(this.#session) : undefined;
    const settings = previousSettings ?? this.#newSessionSettings();
    this.#session = session;
    this.#resumePoint = {
      sessionId: session.id,
      lastEventId: null,
      ...(resume?.token !== undefined && { token: resume.token }),
    };
    const setup: ClientEvent[] = [];
    if (settings && Object.keys(settings).length > 0) {
      setup.push({ type: 'session.update', session: settings });
    }
    const forked = this.#options.fork !== undefined && !this.#rehydrating;
    const needsRehydration = !forked && this.conversation.items.length > 0;
    if (needsRehydration) {
      const unfinished = this.conversation.activeTurn;
      if (unfinished !== null) this.#emitChanges(this.conversation.removeTurn(unfinished));
      setup.push(...recreateItems(this.conversation, this.#outbox.events));
      const isRequested = unfinished === null || this.#responses.has(unfinished.id);
      if (!isRequested) setup.push({ type: 'response.create' });
    }
    if (this.#rehydrating) {
      this.#responses.expectAnnouncements();
      setup.push(...this.#responses.requestsAgain(true).map(({ request }) => request));
    }
    for (const event of setup.reverse()) this.#responses.watch(this.#sendFirst(event));
    this.#rehydrating = false;
    this.#onOpen(needsRehydration ? 'rehydrated' : 'new', null);
  }

  #newSessionSettings(): SessionSettings | undefined {
    const { session, tools } = this.#options;
    return tools ? { ...session, tools: [...(session?.tools ?? []), ...declareTools(tools)] } : session;
  }

  #onOpen(outcome: ResumeOutcome, kv: KVResidency | null): void {
    if (outcome !== 'exact') this.draft.markBufferUnknown();
    this.#connection.markOpen(outcome, kv);
    if (outcome === 'exact' || outcome === 'snapshot') this.#sendBarrier();
    this.draft.sync();
    this.#flush();
    if (this.#barrierId === null) this.#caughtUp.set(true);
  }

  /** Send a barrier: nothing is sent again until every missed event has been received, because missed
   * events may acknowledge it. The barrier retrieves an item that cannot exist; its error reply
   * follows the missed events, is distinguishable from them, and changes nothing. */
  #sendBarrier(): void {
    const event_id = this.#ids.next('event');
    this.#barrierId = event_id;
    this.#sendFirst({ type: 'conversation.item.retrieve', item_id: event_id, event_id });
  }

  #onBarrierPassed(): void {
    this.#barrierId = null;
    if (this.#respondingBeforeSnapshot && this.conversation.needsResponse) this.createResponse();
    this.#respondingBeforeSnapshot = false;
    for (const { id, request } of this.#responses.requestsAgain(false)) {
      this.#outbox.expectAgain(id);
      this.#responses.watch(this.send(request));
    }
    this.#flush();
    this.#caughtUp.set(true);
  }

  /** Queue an event ahead of all others. */
  #sendFirst(event: ClientEvent): Receipt {
    return this.#outbox.add(this.#ids.withIds(event), undefined, true);
  }

  #flush(): void {
    if (!this.#connection.isOpen) return;
    for (const event of this.#outbox.takeUnsent(Date.now(), this.#barrierId ?? undefined)) {
      if (this.#connection.send(event)) this.#sentListeners.emit(event);
      else this.#outbox.reject(event.event_id, 'frame_too_large', 'This message is too long to send.');
    }
  }
}

async function withTimeout(settled: Promise<unknown>, timeout_ms: number): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeout = new Promise((resolve) => (timer = setTimeout(resolve, timeout_ms)));
  await Promise.race([settled, timeout]);
  clearTimeout(timer);
}

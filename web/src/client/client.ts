/**
 * A conversation with a Continuo server that outlives its connections.
 *
 *     idle ──connect──▶ connecting ──session──▶ open
 *                        ▲      │                │
 *                        │   lost             lost
 *                        │      ▼                │        refused, replaced, finished
 *                        └── waiting ◀───────────┘        from any of them ──▶ ended
 *
 * While it waits nothing is refused: what is sent is kept, and goes out when the connection is back.
 */

import { type Backoff, defaultBackoff, delay } from './backoff.js';
import { closing } from './closing.js';
import { type Codec, json } from './codec.js';
import { Conversation, type Change } from './conversation.js';
import { Draft } from './draft.js';
import type {
  ClientEvent,
  ErrorBody,
  Item,
  NewItem,
  Residency,
  ResponseSettings,
  ServerEvent,
  ServerEventOf,
  ServerEventType,
  Session,
  SessionSettings,
} from './events.js';
import { type Observable, Subject, type Unsubscribe } from './observable.js';
import { Ended, Outbox, type Receipt } from './outbox.js';

/** Where a conversation was left: enough to come back to it, from another page too. */
export interface Position {
  sessionId: string;
  lastEventId: string | null;
  token?: string;
}

/** How the connection that is open began. `rebuilt`: the server had lost the session, and was told it
 * again by this client. */
export type Begun = 'new' | 'exact' | 'snapshot' | 'rebuilt';

export type ConnectionState =
  | { phase: 'idle' }
  | { phase: 'connecting'; attempt: number; reason: string }
  | { phase: 'open'; begun: Begun; kv: Residency | null }
  | { phase: 'waiting'; attempt: number; reason: string; retryAt: number }
  | { phase: 'ended'; error: Ended };

export interface Options {
  /** ws:// or wss://, up to and including /v1/realtime. */
  url: string;
  model?: string;
  /** How a new session is set up. */
  session?: SessionSettings;
  /** A key, asked for before each attempt: best a short-lived one. Throw Ended to give up. */
  credentials?: () => Promise<string | undefined>;
  /** Come back to this conversation. */
  resume?: Position;
  /** Begin as another session was, up to and including an item (all of it without). */
  fork?: { session: string; at?: string };
  /** In order of preference; JSON is always offered last. */
  codecs?: Codec[];
  /** Whether to tell a server that has lost the session what was said (default), or to end. */
  rebuild?: boolean;
  backoff?: Partial<Backoff>;
  /** A connection is given up when something was sent and nothing is heard for so long. */
  ackTimeout_ms?: number;
  connectTimeout_ms?: number;
  /** Events that may wait at most; `send` throws beyond it. */
  pendingMax?: number;
  /** For where there is no global one. */
  WebSocket?: new (url: string, protocols: string[]) => WebSocket;
}

type Listener = (event: ServerEvent) => void;

/** The server knows this session no more; the conversation can be told to it again. */
const GONE = new Set(['session_not_found', 'session_expired', 'resume_gap']);
const TICK_MS = 1000;

export class RealtimeClient {
  readonly conversation = new Conversation();
  readonly draft: Draft;
  readonly #changes = new Set<(change: NonNullable<Change>) => void>();
  readonly #sentListeners = new Set<(event: ClientEvent) => void>();
  readonly #listeners = new Map<string, Set<Listener>>();
  readonly #state = new Subject<ConnectionState>({ phase: 'idle' });
  readonly #outbox = new Outbox();
  readonly #options: Options;
  readonly #backoff: Backoff;
  readonly #name = randomName();
  #sent = 0;
  #session: Session | null = null;
  #position: Position | null;
  #socket: WebSocket | null = null;
  #codec: Codec = json;
  #attempt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #ticker: ReturnType<typeof setInterval> | undefined;
  #lastError: ErrorBody | null = null;
  #rebuilding = false;
  #checkBefore = Infinity;
  #heardAt = 0;
  /** The event whose answer says that all is told that was missed; null: it is. */
  #asking: string | null = null;
  /** Whether an answer was being made when the server began to tell everything again. */
  #halfway = false;

  constructor(options: Options) {
    this.#options = options;
    this.#backoff = { ...defaultBackoff, ...options.backoff };
    this.#position = options.resume ?? null;
    this.draft = new Draft((event, again) => this.send(event, again));
  }

  get state(): Observable<ConnectionState> {
    return this.#state;
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
  on(type: '*', listener: Listener): Unsubscribe;
  on<T extends ServerEventType>(type: T, listener: (event: ServerEventOf<T>) => void): Unsubscribe;
  on(type: string, listener: (event: never) => void): Unsubscribe {
    const heard = this.#listeners.get(type) ?? new Set();
    this.#listeners.set(type, heard);
    heard.add(listener as Listener);
    return () => heard.delete(listener as Listener);
  }

  /** Calls `listener` when the conversation has changed. */
  onChange(listener: (change: NonNullable<Change>) => void): Unsubscribe {
    this.#changes.add(listener);
    return () => this.#changes.delete(listener);
  }

  /** Calls `listener` with each event as it goes out, again if it does so again. */
  onSent(listener: (event: ClientEvent) => void): Unsubscribe {
    this.#sentListeners.add(listener);
    return () => this.#sentListeners.delete(listener);
  }

  // ---------------------------------------------------------------- speaking

  /** Sends now, or when the connection is back. `again`: what to send instead after a loss, the last
   * of it with the same id.
   * Throws Ended if there will be no connection, RangeError if too much waits already. */
  send(event: ClientEvent, again: ClientEvent[] = []): Receipt {
    const state = this.#state.value;
    if (state.phase === 'ended') throw state.error;
    if (this.#outbox.size >= (this.#options.pendingMax ?? 4096)) {
      throw new RangeError('too many events wait for the connection');
    }
    const event_id = event.event_id ?? this.#fresh('event');
    const name = (): string => this.#fresh('item');
    const named = complete({ ...event, event_id }, name);
    const instead = again.map((one) => complete({ ...one, event_id: one.event_id ?? event_id }, name));
    const receipt = this.#outbox.put(named, instead.length > 0 ? instead : [named]);
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

  // ---------------------------------------------------------------- the connection

  connect(): void {
    if (this.#state.value.phase === 'idle') void this.#open('');
  }

  /** Tries at once if it waits. */
  retry(): void {
    if (this.#state.value.phase !== 'waiting') return;
    clearTimeout(this.#timer);
    void this.#open(this.#state.value.reason);
  }

  /** Takes the connection for lost, and comes back. */
  drop(reason = 'the connection was cut'): void {
    if (this.#socket !== null) this.#lost(reason);
  }

  /** Is the server still there? If it says nothing within `within_ms`, the connection is lost. */
  check(within_ms = 5000): void {
    if (this.#state.value.phase !== 'open') return;
    const before = Date.now() + within_ms;
    this.#checkBefore = Math.min(this.#checkBefore, before);
    void this.update({}).acknowledged.then(
      () => (this.#checkBefore = Infinity),
      () => undefined,
    );
  }

  /** Leaves. The session stays for a while, and `position` leads back to it. */
  leave(): void {
    this.#end(new Ended('left', 'This client has left.'));
  }

  /** Ends the session for good. */
  async close(): Promise<void> {
    await this.send({ type: 'session.close' }).acknowledged;
  }

  async #open(reason: string): Promise<void> {
    this.#state.set({ phase: 'connecting', attempt: this.#attempt, reason });
    let key: string | undefined;
    try {
      key = await this.#options.credentials?.();
    } catch (error) {
      if (error instanceof Ended) this.#end(error);
      else this.#wait(error instanceof Error ? error.message : String(error));
      return;
    }
    if (this.#state.value.phase !== 'connecting') return; // it was told to leave meanwhile
    const codecs = [...new Set([...(this.#options.codecs ?? []), json])];
    const protocols = codecs.map((codec) => codec.subprotocol);
    if (key !== undefined) protocols.push(`openai-insecure-api-key.${key}`);
    const socket = new (this.#options.WebSocket ?? WebSocket)(this.#url(), protocols);
    socket.binaryType = 'arraybuffer';
    this.#socket = socket;
    this.#lastError = null;
    this.#timer = setTimeout(() => {
      if (socket === this.#socket) this.#lost('the server does not answer');
    }, this.#options.connectTimeout_ms ?? 10_000);
    socket.onopen = () => {
      this.#codec = codecs.find((codec) => codec.subprotocol === socket.protocol) ?? json;
    };
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data as string | ArrayBuffer);
    };
    socket.onerror = () => undefined; // a close follows
    socket.onclose = ({ code, reason }) => {
      if (socket === this.#socket) this.#closed(code, reason);
    };
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
    }
    return url.href;
  }

  #receive(frame: string | ArrayBuffer): void {
    this.#heardAt = Date.now();
    let event: ServerEvent;
    try {
      event = this.#codec.decode(frame) as ServerEvent;
    } catch {
      this.#lost('the server sent what cannot be read');
      return;
    }
    if (event.type === 'session.created' && this.#position !== null) {
      this.#gone(); // it did not take us back, and began another one
      return;
    }
    const everything =
      event.type === 'session.updated' && event.session.resume?.resumed === 'snapshot';
    if (everything) this.#halfway = this.conversation.running !== null;
    this.#outbox.hear(event);
    if (event.type === 'error' && this.#asking && event.error.event_id === this.#asking) {
      this.#settled();
      return;
    }
    const change = this.conversation.apply(event);
    this.#note(event);
    for (const type of [event.type, '*']) {
      for (const listener of [...(this.#listeners.get(type) ?? [])]) listener(event);
    }
    if (change !== null) for (const listener of [...this.#changes]) listener(change);
    if (this.#position !== null && typeof event.event_id === 'string' && event.type !== 'error') {
      this.#position.lastEventId = event.event_id;
    }
  }

  #note(event: ServerEvent): void {
    switch (event.type) {
      case 'session.created':
        this.#begin(event.session);
        break;
      case 'session.updated': {
        this.#session = event.session;
        const resume = event.session.resume;
        if (this.#position !== null && resume?.token !== undefined) {
          this.#position.token = resume.token;
        }
        if (resume?.resumed) this.#opened(resume.resumed, resume.kv ?? null);
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
  #begin(session: Session): void {
    const { resume } = session;
    const known = this.#rebuilding && this.#session ? settingsOf(this.#session) : undefined;
    const settings = known ?? this.#options.session;
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
    const told = !forked && this.conversation.items.length > 0;
    if (told) first.push(...this.#recollection());
    for (const event of first.reverse()) {
      const named = { ...event, event_id: this.#fresh('event') };
      this.#outbox.put(
        complete(named, () => this.#fresh('item')),
        undefined,
        true,
      );
    }
    this.#rebuilding = false;
    this.#opened(told ? 'rebuilt' : 'new', null);
  }

  /** All that was said, to be told again; an answer that was being made is asked for anew. */
  #recollection(): ClientEvent[] {
    const half = this.conversation.running;
    const created = new Set(this.#outbox.events.map(itemIdOf));
    const items = this.conversation.items.filter(
      (item) => !half?.items.includes(item.id) && !created.has(item.id),
    );
    if (half) this.conversation.forget(half);
    const told: ClientEvent[] = items.map((item) => ({
      type: 'conversation.item.create',
      item: bare(item),
    }));
    if (half) told.push({ type: 'response.create' });
    return told;
  }

  #opened(begun: Begun, kv: Residency | null): void {
    clearTimeout(this.#timer);
    this.#attempt = 0;
    this.#checkBefore = Infinity;
    clearInterval(this.#ticker);
    this.#ticker = setInterval(() => {
      this.#tick();
    }, TICK_MS);
    if (begun !== 'exact') this.draft.unsure();
    this.#state.set({ phase: 'open', begun, kv });
    if (begun === 'exact' || begun === 'snapshot') this.#settle();
    this.draft.renew();
    this.#flush();
  }

  /** What was missed may acknowledge what would be sent again: that waits until all of it is told.
   * So we ask for an item that there cannot be: the answer comes behind what was missed, cannot be
   * taken for a part of it, and changes nothing. */
  #settle(): void {
    const event_id = this.#fresh('event');
    this.#asking = event_id;
    const ask = { type: 'conversation.item.retrieve' as const, item_id: event_id, event_id };
    this.#outbox.put(ask, undefined, true);
  }

  #settled(): void {
    this.#asking = null;
    if (this.#halfway && this.conversation.awaitsAnswer) this.respond();
    this.#halfway = false;
    this.#flush();
  }

  #flush(): void {
    const socket = this.#socket;
    if (this.#state.value.phase !== 'open' || socket?.readyState !== 1) return;
    for (const event of this.#outbox.take(Date.now(), this.#asking ?? undefined)) {
      socket.send(this.#codec.encode(event));
      for (const listener of [...this.#sentListeners]) listener(event);
    }
  }

  #tick(): void {
    const now = Date.now();
    const oldest = this.#outbox.oldestSentAt;
    const patience = this.#options.ackTimeout_ms ?? 20_000;
    // A server that has much to do says so by doing it.
    const late = oldest !== null && now - Math.max(oldest, this.#heardAt) > patience;
    if (late || now > this.#checkBefore) this.#lost('the server does not answer');
  }

  #closed(code: number, said: string): void {
    const error = this.#lastError;
    if (error !== null && GONE.has(error.code ?? '')) {
      this.#gone(error);
      return;
    }
    const close = closing(code, said);
    if (close.recoverable) this.#lost(close.reason);
    else this.#end(new Ended(error?.code ?? `close_${code}`, error?.message ?? close.reason, close));
  }

  /** The server has lost the session. */
  #gone(error: ErrorBody | null = null): void {
    const words = error?.message ?? 'The server does not know this session any more.';
    if (this.#options.rebuild === false) {
      this.#end(new Ended(error?.code ?? 'session_not_found', words));
      return;
    }
    this.#position = null;
    this.#rebuilding = true;
    this.#hangUp();
    this.#outbox.lost();
    void this.#open(words);
  }

  #lost(reason: string): void {
    this.#hangUp();
    this.#outbox.lost();
    this.#wait(reason);
  }

  #wait(reason: string): void {
    this.#attempt += 1;
    const wait = delay(this.#attempt, this.#backoff);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#open(reason), wait);
    const retryAt = Date.now() + wait;
    this.#state.set({ phase: 'waiting', attempt: this.#attempt, reason, retryAt });
  }

  #end(error: Ended): void {
    if (this.#state.value.phase === 'ended') return;
    this.#hangUp();
    this.#state.set({ phase: 'ended', error });
    this.#outbox.end(error);
  }

  #hangUp(): void {
    clearTimeout(this.#timer);
    clearInterval(this.#ticker);
    if (this.#asking !== null) this.#outbox.drop(this.#asking);
    this.#asking = null;
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #fresh(kind: string): string {
    this.#sent += 1;
    return `${kind}_${this.#name}_${this.#sent}`;
  }
}

/** An event as the wire wants it: items have ids, sessions a type. */
function complete<T extends ClientEvent>(event: T & { event_id: string }, name: () => string) {
  if (event.type === 'conversation.item.create') {
    return { ...event, item: { ...event.item, id: event.item.id ?? name() } };
  }
  if (event.type === 'session.update') {
    return { ...event, session: { type: 'realtime', ...event.session } };
  }
  return event;
}

const SETTINGS = [
  'instructions',
  'tools',
  'tool_choice',
  'max_output_tokens',
  'truncation',
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'seed',
  'stop',
  'repetition_penalty',
  'presence_penalty',
  'frequency_penalty',
] as const satisfies readonly (keyof SessionSettings)[];

/** What of a session a client may set. */
export function settingsOf(session: Session): SessionSettings {
  const known = SETTINGS.filter((key) => session[key] !== undefined);
  return Object.fromEntries(known.map((key) => [key, session[key]]));
}

function itemIdOf(event: ClientEvent): string | undefined {
  return event.type === 'conversation.item.create' ? event.item.id : undefined;
}

/** An item without what only the server says. */
function bare(item: Item): NewItem {
  const { status: _, ...rest } = item;
  return rest;
}

function randomName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

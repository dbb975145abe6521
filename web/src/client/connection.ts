/**
 * Keeps a connection: opens it, notices that it is lost, waits, opens it again.
 *
 *     idle ──connect──▶ connecting ──opened──▶ open
 *                        ▲      │               │
 *                        │   lost            lost
 *                        │      ▼               │        refused, replaced, finished
 *                        └── waiting ◀──────────┘        from any of them ──▶ ended
 *
 * Knows sockets and time; what is said on it is its host's.
 */

import { type Backoff, defaultBackoff, delay } from './backoff.js';
import { type Codec, json } from './codec.js';
import type { ClientEvent, Residency, ServerEvent } from './events.js';
import { type Observable, Subject } from './observable.js';
import { Ended } from './outbox.js';

/** How the connection that is open began. `rebuilt`: the server had lost the session, and was told it
 * again by this client. */
export type Begun = 'new' | 'exact' | 'snapshot' | 'rebuilt';

export type ConnectionState =
  | { phase: 'idle' }
  | { phase: 'connecting'; attempt: number; reason: string }
  | { phase: 'open'; begun: Begun; kv: Residency | null }
  | { phase: 'waiting'; attempt: number; reason: string; retryAt: number }
  | { phase: 'ended'; error: Ended };

export interface ConnectionOptions {
  /** A key, asked for before each attempt: best a short-lived one. Throw Ended to give up. */
  credentials?: () => Promise<string | undefined>;
  /** In order of preference; JSON is always offered last. */
  codecs?: Codec[];
  backoff?: Partial<Backoff>;
  /** A connection is given up when something was sent and nothing is heard for so long. */
  ackTimeout_ms?: number;
  connectTimeout_ms?: number;
  /** A larger frame is not sent: the server would not read it. */
  frameMax_bytes?: number;
  /** For where there is no global one. */
  WebSocket?: new (url: string, protocols: string[]) => WebSocket;
}

/** Whose connection it is. */
export interface ConnectionHandler {
  /** Where the next attempt leads. */
  url(): string;
  onEvent(event: ServerEvent): void;
  /** The other side has closed it: `lost`, `again` or `end` is to be called. */
  onClose(code: number, reason: string): void;
  /** There is no connection any more, and what went out on it may not have arrived. */
  onDisconnect(): void;
  /** Milliseconds: since when something that was sent waits for its answer. */
  oldestUnacknowledgedAt(): number | null;
}

const TIMEOUT_CHECK_MS = 1000;
const FRAME_MAX_BYTES = 1024 * 1024;

export class Connection {
  readonly #options: ConnectionOptions;
  readonly #handler: ConnectionHandler;
  readonly #backoff: Backoff;
  readonly #state = new Subject<ConnectionState>({ phase: 'idle' });
  #socket: WebSocket | null = null;
  #codec: Codec = json;
  #attempt = 0;
  /** Of the attempt under way, or of the wait for the next one. */
  #timer: ReturnType<typeof setTimeout> | undefined;
  #timeoutTimer: ReturnType<typeof setInterval> | undefined;
  #lastReceivedAt = 0;
  #livenessDeadlineAt = Infinity;

  constructor(options: ConnectionOptions, handler: ConnectionHandler) {
    this.#options = options;
    this.#handler = handler;
    this.#backoff = { ...defaultBackoff, ...options.backoff };
  }

  get state(): Observable<ConnectionState> {
    return this.#state;
  }

  get open(): boolean {
    return this.#state.value.phase === 'open' && this.#socket?.readyState === 1;
  }

  /** Whether it went out: it does not if its frame would be too large. */
  send(event: ClientEvent): boolean {
    const frame = this.#codec.encode(event);
    if (exceeds(frame, this.#options.frameMax_bytes ?? FRAME_MAX_BYTES)) return false;
    this.#socket?.send(frame);
    return true;
  }

  connect(): void {
    if (this.#state.value.phase === 'idle') void this.#open('');
  }

  /** Tries at once if it waits. */
  retry(): void {
    if (this.#state.value.phase !== 'waiting') return;
    clearTimeout(this.#timer);
    void this.#open(this.#state.value.reason);
  }

  /** The other side has taken us in. */
  markOpen(begun: Begun, kv: Residency | null): void {
    clearTimeout(this.#timer);
    clearInterval(this.#timeoutTimer);
    this.#attempt = 0;
    this.#livenessDeadlineAt = Infinity;
    this.#timeoutTimer = setInterval(() => {
      this.#checkTimeouts();
    }, TIMEOUT_CHECK_MS);
    this.#state.set({ phase: 'open', begun, kv });
  }

  /** It counts as lost if nothing has settled that by then; milliseconds from now. */
  startLivenessDeadline(within_ms: number): void {
    this.#livenessDeadlineAt = Math.min(this.#livenessDeadlineAt, Date.now() + within_ms);
  }

  /** The server is there. */
  clearLivenessDeadline(): void {
    this.#livenessDeadlineAt = Infinity;
  }

  /** Opens another one after a while. */
  reconnectAfterBackoff(reason: string): void {
    this.#closeSocket();
    this.#scheduleRetry(reason);
  }

  /** Opens another one at once. */
  reconnectNow(reason: string): void {
    this.#closeSocket();
    void this.#open(reason);
  }

  /** For good. */
  end(error: Ended): void {
    if (this.#state.value.phase === 'ended') return;
    this.#closeSocket();
    this.#state.set({ phase: 'ended', error });
  }

  /** Takes it for lost, if there is one. */
  disconnect(reason: string): void {
    if (this.#socket !== null) this.reconnectAfterBackoff(reason);
  }

  async #open(reason: string): Promise<void> {
    this.#state.set({ phase: 'connecting', attempt: this.#attempt, reason });
    let key: string | undefined;
    try {
      key = await this.#options.credentials?.();
    } catch (error) {
      if (error instanceof Ended) this.end(error);
      else this.#scheduleRetry(error instanceof Error ? error.message : String(error));
      return;
    }
    if (this.#state.value.phase !== 'connecting') return; // it was ended meanwhile
    const codecs = [...new Set([...(this.#options.codecs ?? []), json])];
    const protocols = codecs.map((codec) => codec.subprotocol);
    if (key !== undefined) protocols.push(`openai-insecure-api-key.${key}`);
    const socket = new (this.#options.WebSocket ?? WebSocket)(this.#handler.url(), protocols);
    socket.binaryType = 'arraybuffer';
    this.#socket = socket;
    this.#timer = setTimeout(() => {
      if (socket === this.#socket) this.reconnectAfterBackoff('the server does not answer');
    }, this.#options.connectTimeout_ms ?? 10_000);
    socket.onopen = () => {
      this.#codec = codecs.find((codec) => codec.subprotocol === socket.protocol) ?? json;
    };
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data as string | ArrayBuffer);
    };
    socket.onerror = () => undefined; // a close follows
    socket.onclose = ({ code, reason }) => {
      if (socket === this.#socket) this.#handler.onClose(code, reason);
    };
  }

  #receive(frame: string | ArrayBuffer): void {
    this.#lastReceivedAt = Date.now();
    let event: ServerEvent;
    try {
      event = this.#codec.decode(frame) as ServerEvent;
    } catch {
      this.reconnectAfterBackoff('the server sent what cannot be read');
      return;
    }
    this.#handler.onEvent(event);
  }

  #checkTimeouts(): void {
    const now = Date.now();
    const oldestSentAt = this.#handler.oldestUnacknowledgedAt();
    const ackTimeout_ms = this.#options.ackTimeout_ms ?? 20_000;
    // A server that has much to do says so by doing it.
    const late = oldestSentAt !== null && now - Math.max(oldestSentAt, this.#lastReceivedAt) > ackTimeout_ms;
    if (late || now > this.#livenessDeadlineAt) this.reconnectAfterBackoff('the server does not answer');
  }

  #scheduleRetry(reason: string): void {
    this.#attempt += 1;
    const wait_ms = delay(this.#attempt, this.#backoff);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#open(reason), wait_ms);
    const retryAt = Date.now() + wait_ms;
    this.#state.set({ phase: 'waiting', attempt: this.#attempt, reason, retryAt });
  }

  #closeSocket(): void {
    clearTimeout(this.#timer);
    clearInterval(this.#timeoutTimer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
    this.#handler.onDisconnect();
  }
}

function exceeds(frame: string | Uint8Array, max_bytes: number): boolean {
  if (typeof frame !== 'string') return frame.length > max_bytes;
  if (frame.length * 3 <= max_bytes) return false; // so many at most, in UTF-8
  return new TextEncoder().encode(frame).length > max_bytes;
}

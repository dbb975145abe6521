/**
 * A connection that reconnects: detects losses, backs off, and opens a new socket.
 *
 *     idle ──connect──▶ connecting ──opened──▶ open
 *                        ▲      │               │
 *                        │   lost            lost
 *                        │      ▼               │        refused, replaced, finished
 *                        └── waiting ◀──────────┘        from any of them ──▶ ended
 *
 * Handles sockets and timers only; the events on the wire belong to its handler.
 */

import { type Backoff, defaultBackoff, delay } from './backoff.js';
import type { ClientEvent, Residency, ServerEvent } from './events.js';
import { type Observable, Subject } from './observable.js';
import { Ended } from './outbox.js';

/** How the open connection began: with a new session, resumed exactly after the last event, resumed
 * from a snapshot, or rebuilt by this client because the server had lost the session. */
export type Begun = 'new' | 'exact' | 'snapshot' | 'rebuilt';

export type ConnectionState =
  | { phase: 'idle' }
  | { phase: 'connecting'; attempt: number; reason: string }
  | { phase: 'open'; begun: Begun; kv: Residency | null }
  | { phase: 'waiting'; attempt: number; reason: string; retryAt: number }
  | { phase: 'ended'; error: Ended };

export interface ConnectionOptions {
  /** Returns the key for the next attempt, preferably a short-lived one. Throw Ended to stop retrying. */
  credentials?: () => Promise<string | undefined>;
  backoff?: Partial<Backoff>;
  /** Reconnect if nothing is received for this long while an event is unacknowledged. */
  ackTimeout_ms?: number;
  connectTimeout_ms?: number;
  /** Largest frame to send; servers refuse larger ones. */
  frameMax_bytes?: number;
  /** WebSocket implementation, where there is no global one. */
  WebSocket?: new (url: string, protocols: string[]) => WebSocket;
}

/** Callbacks of a connection. */
export interface ConnectionHandler {
  /** Returns the URL for the next attempt. */
  url(): string;
  onEvent(event: ServerEvent): void;
  /** The server closed the socket: call `reconnectAfterBackoff`, `reconnectNow` or `end`. */
  onClose(code: number, reason: string): void;
  /** The socket is gone, and events sent on it may not have arrived. */
  onDisconnect(): void;
  /** Returns when the oldest unacknowledged event was sent, in milliseconds. */
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
  #attempt = 0;
  /** Timer of the current attempt, or of the delay before the next one. */
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

  /** Send an event. Returns false if its frame would be too large. */
  send(event: ClientEvent): boolean {
    const frame = JSON.stringify(event);
    if (exceeds(frame, this.#options.frameMax_bytes ?? FRAME_MAX_BYTES)) return false;
    this.#socket?.send(frame);
    return true;
  }

  connect(): void {
    if (this.#state.value.phase === 'idle') void this.#open('');
  }

  /** Skip the remaining delay before the next attempt. */
  retry(): void {
    if (this.#state.value.phase !== 'waiting') return;
    clearTimeout(this.#timer);
    void this.#open(this.#state.value.reason);
  }

  /** Mark the connection as open, once the server has created or resumed the session. */
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

  /** Reconnect unless `clearLivenessDeadline` is called within `within_ms` milliseconds. */
  startLivenessDeadline(within_ms: number): void {
    this.#livenessDeadlineAt = Math.min(this.#livenessDeadlineAt, Date.now() + within_ms);
  }

  /** Cancel the liveness deadline. */
  clearLivenessDeadline(): void {
    this.#livenessDeadlineAt = Infinity;
  }

  /** Close the socket and open another one after the backoff delay. */
  reconnectAfterBackoff(reason: string): void {
    this.#closeSocket();
    this.#scheduleRetry(reason);
  }

  /** Close the socket and open another one at once. */
  reconnectNow(reason: string): void {
    this.#closeSocket();
    void this.#open(reason);
  }

  /** Close the socket for good. */
  end(error: Ended): void {
    if (this.#state.value.phase === 'ended') return;
    this.#closeSocket();
    this.#state.set({ phase: 'ended', error });
  }

  /** Drop the current socket, if any, and reconnect. */
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
    if (this.#state.value.phase !== 'connecting') return; // ended meanwhile
    const protocols = ['realtime'];
    if (key !== undefined) protocols.push(`openai-insecure-api-key.${key}`);
    const socket = new (this.#options.WebSocket ?? WebSocket)(this.#handler.url(), protocols);
    this.#socket = socket;
    this.#timer = setTimeout(() => {
      if (socket === this.#socket) this.reconnectAfterBackoff('the server does not respond');
    }, this.#options.connectTimeout_ms ?? 10_000);
    socket.onmessage = ({ data }) => {
      if (socket === this.#socket) this.#receive(data as string);
    };
    socket.onerror = () => undefined; // a close follows
    socket.onclose = ({ code, reason }) => {
      if (socket === this.#socket) this.#handler.onClose(code, reason);
    };
  }

  #receive(frame: string): void {
    this.#lastReceivedAt = Date.now();
    let event: ServerEvent;
    try {
      event = JSON.parse(frame) as ServerEvent;
    } catch {
      this.reconnectAfterBackoff('the server sent a malformed frame');
      return;
    }
    this.#handler.onEvent(event);
  }

  #checkTimeouts(): void {
    const now = Date.now();
    const oldestSentAt = this.#handler.oldestUnacknowledgedAt();
    const ackTimeout_ms = this.#options.ackTimeout_ms ?? 20_000;
    // Any received event shows that a busy server is alive.
    const late =
      oldestSentAt !== null && now - Math.max(oldestSentAt, this.#lastReceivedAt) > ackTimeout_ms;
    if (late || now > this.#livenessDeadlineAt) {
      this.reconnectAfterBackoff('the server does not respond');
    }
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

function exceeds(frame: string, max_bytes: number): boolean {
  if (frame.length * 3 <= max_bytes) return false; // UTF-8 takes at most three bytes per UTF-16 unit
  return new TextEncoder().encode(frame).length > max_bytes;
}

/**
 * A connection that reconnects: detects losses, backs off, and opens a new socket.
 *
 *     idle ──connect──▶ connecting ──opened──▶ open
 *                        ▲      │               │
 *                        │   lost            lost
 *                        │      ▼               │        refused, taken over, disconnected:
 *                        └── waiting ◀──────────┘        from any of them ──▶ closed
 *
 * Handles sockets and timers only; the events on the wire belong to its handler.
 */

import { backoffDelay, type BackoffOptions, defaultBackoff } from './backoff.js';
import type { ClientEvent, KVResidency, ServerEvent } from './events.js';
import { type Observable, Subject } from './observable.js';
import { ConnectionClosedError } from './outbox.js';

/** How the session was resumed on connecting. `new`: not at all; `exact`: after the last event received;
 * `snapshot`: with a snapshot of the conversation; `rehydrated`: from this client's copy in a new session,
 * because the server had lost it. */
export type ResumeOutcome = 'new' | 'exact' | 'snapshot' | 'rehydrated';

export type ConnectionState =
  | { phase: 'idle' }
  | { phase: 'connecting'; attempt: number; reason: string }
  | { phase: 'open'; resumeOutcome: ResumeOutcome; kv: KVResidency | null }
  | { phase: 'waiting'; attempt: number; reason: string; retryAt: number }
  | { phase: 'closed'; error: ConnectionClosedError };

export interface ConnectionOptions {
  /** Returns the API key for the next attempt, preferably a short-lived one. May throw: the client stops
   * after ConnectionClosedError, and retries after any other error. */
  getApiKey?: () => Promise<string | undefined>;
  backoff?: Partial<BackoffOptions>;
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
  /** The server closed the socket: call `reconnectAfterBackoff`, `reconnectNow` or `close`. */
  onClose(code: number, reason: string): void;
  /** The socket is closed, and events sent on it may not have arrived. */
  onDisconnect(): void;
  /** Returns when the oldest unacknowledged event was sent, in milliseconds. */
  oldestUnacknowledgedAt(): number | null;
}

const TIMEOUT_CHECK_MS = 1000;
const FRAME_MAX_BYTES = 1024 * 1024;

export class Connection {
  readonly #options: ConnectionOptions;
  readonly #handler: ConnectionHandler;
  readonly #backoff: BackoffOptions;
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

  get isOpen(): boolean {
    return this.#state.value.phase === 'open' && this.#socket?.readyState === 1;
  }

  /** Send an event. Returns false if its frame would be too large. */
  send(event: ClientEvent): boolean {
    const frame = JSON.stringify(event);
    if (isLargerThan(frame, this.#options.frameMax_bytes ?? FRAME_MAX_BYTES)) return false;
    this.#socket?.send(frame);
    return true;
  }

  connect(): void {
    if (this.#state.value.phase === 'idle') void this.#openSocket('');
  }

  /** Skip the remaining delay before the next attempt. */
  retryNow(): void {
    if (this.#state.value.phase !== 'waiting') return;
    clearTimeout(this.#timer);
    void this.#openSocket(this.#state.value.reason);
  }

  /** Mark the connection as open, once the server has created or resumed the session. */
  markOpen(resumeOutcome: ResumeOutcome, kv: KVResidency | null): void {
    clearTimeout(this.#timer);
    clearInterval(this.#timeoutTimer);
    this.#attempt = 0;
    this.#livenessDeadlineAt = Infinity;
    this.#timeoutTimer = setInterval(() => {
      this.#checkTimeouts();
    }, TIMEOUT_CHECK_MS);
    this.#state.set({ phase: 'open', resumeOutcome, kv });
  }

  /** Reconnect unless `clearLivenessDeadline` is called within `timeout_ms` milliseconds. */
  startLivenessDeadline(timeout_ms: number): void {
    this.#livenessDeadlineAt = Math.min(this.#livenessDeadlineAt, Date.now() + timeout_ms);
  }

  /** Cancel the liveness deadline. */
  clearLivenessDeadline(): void {
    this.#livenessDeadlineAt = Infinity;
  }

  /** Close the current socket, if any, and open another one after the backoff delay. */
  reconnectAfterBackoff(reason: string): void {
    if (this.#socket === null) return;
    this.#closeSocket();
    this.#scheduleRetry(reason);
  }

  /** Close the socket and open another one at once. */
  reconnectNow(reason: string): void {
    this.#closeSocket();
    void this.#openSocket(reason);
  }

  /** Close the connection for good. */
  close(error: ConnectionClosedError): void {
    if (this.#state.value.phase === 'closed') return;
    this.#closeSocket();
    this.#state.set({ phase: 'closed', error });
  }

  async #openSocket(reason: string): Promise<void> {
    this.#state.set({ phase: 'connecting', attempt: this.#attempt, reason });
    let key: string | undefined;
    try {
      key = await this.#options.getApiKey?.();
    } catch (error) {
      if (error instanceof ConnectionClosedError) this.close(error);
      else this.#scheduleRetry(error instanceof Error ? error.message : String(error));
      return;
    }
    if (this.#state.value.phase !== 'connecting') return; // closed meanwhile
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
    const wait_ms = backoffDelay(this.#attempt, this.#backoff);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#openSocket(reason), wait_ms);
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

function isLargerThan(frame: string, max_bytes: number): boolean {
  if (frame.length * 3 <= max_bytes) return false; // UTF-8 takes at most three bytes per UTF-16 unit
  return new TextEncoder().encode(frame).length > max_bytes;
}

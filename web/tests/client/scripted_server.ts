/** WebSocket server scripted by a test, over real sockets. */

import type { AddressInfo } from 'node:net';
import type { IncomingMessage } from 'node:http';
import { WebSocket as Socket, WebSocketServer } from 'ws';
import { RealtimeClient, type RealtimeClientOptions } from '../../src/client/index.js';

type Frame = Record<string, unknown> & { type: string };

/** Queue with an asynchronous reader. */
class AsyncQueue<T> {
  readonly #values: T[] = [];
  readonly #waiters: ((value: T) => void)[] = [];

  put(value: T): void {
    const waiter = this.#waiters.shift();
    if (waiter) waiter(value);
    else this.#values.push(value);
  }

  get(): Promise<T> {
    const value = this.#values.shift();
    if (value !== undefined) return Promise.resolve(value);
    return new Promise((resolve) => this.#waiters.push(resolve));
  }

  get length(): number {
    return this.#values.length;
  }
}

/** The server's side of one connection. */
export class ServerConnection {
  readonly query: URLSearchParams;
  readonly protocols: string[];
  readonly socket: Socket;
  readonly receivedFrames = new AsyncQueue<Frame>();
  #sentCount = 0;

  constructor(socket: Socket, request: IncomingMessage) {
    this.socket = socket;
    this.query = new URL(request.url ?? '', 'http://x').searchParams;
    this.protocols = (request.headers['sec-websocket-protocol'] ?? '').split(/,\s*/);
    socket.on('message', (data) => {
      this.receivedFrames.put(JSON.parse((data as Buffer).toString()) as Frame);
    });
  }

  /** Send an event; its id is `ev_N` unless given. */
  send(type: string, fields: object = {}): void {
    this.#sentCount += 1;
    this.socket.send(JSON.stringify({ type, event_id: `ev_${this.#sentCount}`, ...fields }));
  }

  sendSessionCreated(id = 'sess_1', fields: object = {}): void {
    this.send('session.created', { session: { id, model: 'm', ...fields } });
  }

  /** Resume the client, send what it missed, and reply to its barrier event. */
  async acceptResume(
    resumed: 'exact' | 'snapshot',
    fields: object = {},
    sendMissedEvents: () => void = () => undefined,
  ): Promise<void> {
    const session = { id: 'sess_1', model: 'm' };
    const resume = { session_id: session.id, resumed, kv: 'hot', ...fields };
    this.send('session.updated', { session: { ...session, resume } });
    sendMissedEvents();
    const { event_id } = await this.receive('conversation.item.retrieve');
    const error = { type: 'x', code: 'item_retrieve_invalid_item_id', message: 'none', event_id };
    this.send('error', { error });
  }

  /** Returns the client's next event. Throws if its type is another. */
  async receive(type: string): Promise<Frame> {
    const frame = await this.receivedFrames.get();
    if (frame.type !== type) throw new Error(`expected ${type}, got ${JSON.stringify(frame)}`);
    return frame;
  }

  sendItemAdded(item: unknown, previous: string | null = null): void {
    this.send('conversation.item.added', { item, previous_item_id: previous });
  }

  /** Close the TCP connection without a close frame. */
  terminate(): void {
    this.socket.terminate();
  }
}

export class ScriptedServer {
  readonly #server: WebSocketServer;
  readonly #connections = new AsyncQueue<ServerConnection>();
  readonly #clients: RealtimeClient[] = [];

  private constructor(server: WebSocketServer) {
    this.#server = server;
    server.on('connection', (socket, request) => {
      this.#connections.put(new ServerConnection(socket, request));
    });
  }

  static async start(): Promise<ScriptedServer> {
    const server = new WebSocketServer({ host: '127.0.0.1', port: 0 });
    await new Promise((resolve) => server.once('listening', resolve));
    return new ScriptedServer(server);
  }

  get url(): string {
    return `ws://127.0.0.1:${(this.#server.address() as AddressInfo).port}/v1/realtime`;
  }

  /** Returns a connecting client with a short backoff. */
  createClient(options: Partial<RealtimeClientOptions> = {}): RealtimeClient {
    const client = new RealtimeClient({
      url: this.url,
      WebSocket: Socket as unknown as NonNullable<RealtimeClientOptions['WebSocket']>,
      backoff: { base_ms: 10, max_ms: 20 },
      ...options,
    });
    this.#clients.push(client);
    client.connect();
    return client;
  }

  accept(): Promise<ServerConnection> {
    return this.#connections.get();
  }

  /** Returns a client with an open session, and its connection. */
  async createConnectedClient(
    options: Partial<RealtimeClientOptions> = {},
  ): Promise<{ client: RealtimeClient; connection: ServerConnection }> {
    const client = this.createClient(options);
    const connection = await this.accept();
    connection.sendSessionCreated();
    await waitForPhase(client, 'open');
    return { client, connection };
  }

  stop(): void {
    for (const client of this.#clients) void client.close(0);
    for (const socket of this.#server.clients) socket.terminate();
    this.#server.close();
  }
}

type Phase = RealtimeClient['state']['value']['phase'];

/** Wait until the client is in a phase, and return its state. */
export function waitForPhase<P extends Phase>(client: RealtimeClient, phase: P) {
  type State = Extract<RealtimeClient['state']['value'], { phase: P }>;
  return new Promise<State>((resolve) => {
    if (client.state.value.phase === phase) resolve(client.state.value as State);
    else {
      const unsubscribe = client.state.subscribe((state) => {
        if (state.phase !== phase) return;
        unsubscribe();
        resolve(state as State);
      });
    }
  });
}

/** Wait for the client's next event of a type. */
export function waitForEvent(client: RealtimeClient, type: Parameters<RealtimeClient['on']>[0]) {
  return new Promise((resolve) => {
    const unsubscribe = client.on(type as '*', (event) => {
      unsubscribe();
      resolve(event);
    });
  });
}

/** A server that says what a test tells it to, over real sockets. */

import type { AddressInfo } from 'node:net';
import type { IncomingMessage } from 'node:http';
import { WebSocket as Socket, WebSocketServer } from 'ws';
import { type Options, RealtimeClient } from '../../src/client/index.js';

type Frame = Record<string, unknown> & { type: string };

/** A queue whose reader waits. */
class Inbox<T> {
  readonly #had: T[] = [];
  readonly #asked: ((value: T) => void)[] = [];

  put(value: T): void {
    const asked = this.#asked.shift();
    if (asked) asked(value);
    else this.#had.push(value);
  }

  get(): Promise<T> {
    const had = this.#had.shift();
    if (had !== undefined) return Promise.resolve(had);
    return new Promise((resolve) => this.#asked.push(resolve));
  }

  get length(): number {
    return this.#had.length;
  }
}

/** One connection, seen from the server. */
export class Peer {
  readonly query: URLSearchParams;
  readonly protocols: string[];
  readonly socket: Socket;
  readonly inbox = new Inbox<Frame>();
  #said = 0;

  constructor(socket: Socket, request: IncomingMessage, decode: (data: Buffer) => Frame) {
    this.socket = socket;
    this.query = new URL(request.url ?? '', 'http://x').searchParams;
    this.protocols = (request.headers['sec-websocket-protocol'] ?? '').split(/,\s*/);
    socket.on('message', (data) => {
      this.inbox.put(decode(data as Buffer));
    });
  }

  /** Event ids are `ev_N` unless said otherwise. */
  say(type: string, fields: object = {}): void {
    this.#said += 1;
    this.socket.send(JSON.stringify({ type, event_id: `ev_${this.#said}`, ...fields }));
  }

  created(id = 'sess_1', fields: object = {}): void {
    this.say('session.created', { session: { id, model: 'm', ...fields } });
  }

  /** Takes the client back, tells what it has missed, and answers its question behind that. */
  async resumed(
    how: 'exact' | 'snapshot',
    fields: object = {},
    missed: () => void = () => undefined,
  ): Promise<void> {
    const session = { id: 'sess_1', model: 'm' };
    const resume = { session_id: session.id, resumed: how, kv: 'hot', ...fields };
    this.say('session.updated', { session: { ...session, resume } });
    missed();
    const { event_id } = await this.hear('conversation.item.retrieve');
    const error = { type: 'x', code: 'item_retrieve_invalid_item_id', message: 'none', event_id };
    this.say('error', { error });
  }

  /** The next event of the client, which must be of this type. */
  async hear(type: string): Promise<Frame> {
    const frame = await this.inbox.get();
    if (frame.type !== type) throw new Error(`expected ${type}, got ${JSON.stringify(frame)}`);
    return frame;
  }

  added(item: unknown, previous: string | null = null): void {
    this.say('conversation.item.added', { item, previous_item_id: previous });
  }

  /** As a cable that is pulled. */
  cut(): void {
    this.socket.terminate();
  }
}

export class Scripted {
  readonly #server: WebSocketServer;
  readonly #peers = new Inbox<Peer>();
  readonly #clients: RealtimeClient[] = [];

  private constructor(server: WebSocketServer, decode: (data: Buffer) => Frame) {
    this.#server = server;
    server.on('connection', (socket, request) => {
      this.#peers.put(new Peer(socket, request, decode));
    });
  }

  static async start(
    subprotocol = 'realtime',
    decode: (data: Buffer) => Frame = (data) => JSON.parse(data.toString()) as Frame,
  ): Promise<Scripted> {
    const server = new WebSocketServer({
      host: '127.0.0.1',
      port: 0,
      handleProtocols: () => subprotocol,
    });
    await new Promise((resolve) => server.once('listening', resolve));
    return new Scripted(server, decode);
  }

  get url(): string {
    return `ws://127.0.0.1:${(this.#server.address() as AddressInfo).port}/v1/realtime`;
  }

  /** A client that is quick to come back. */
  client(options: Partial<Options> = {}): RealtimeClient {
    const client = new RealtimeClient({
      url: this.url,
      WebSocket: Socket as unknown as NonNullable<Options['WebSocket']>,
      backoff: { base_ms: 10, max_ms: 20 },
      ...options,
    });
    this.#clients.push(client);
    client.connect();
    return client;
  }

  accept(): Promise<Peer> {
    return this.#peers.get();
  }

  /** A client and its session. */
  async begun(options: Partial<Options> = {}): Promise<{ client: RealtimeClient; peer: Peer }> {
    const client = this.client(options);
    const peer = await this.accept();
    peer.created();
    await phase(client, 'open');
    return { client, peer };
  }

  stop(): void {
    for (const client of this.#clients) client.leave();
    for (const socket of this.#server.clients) socket.terminate();
    this.#server.close();
  }
}

type Phase = RealtimeClient['state']['value']['phase'];

/** Returns when the client is in a phase. */
export function phase<P extends Phase>(client: RealtimeClient, wanted: P) {
  type Found = Extract<RealtimeClient['state']['value'], { phase: P }>;
  return new Promise<Found>((resolve) => {
    if (client.state.value.phase === wanted) resolve(client.state.value as Found);
    else {
      const off = client.state.subscribe((state) => {
        if (state.phase !== wanted) return;
        off();
        resolve(state as Found);
      });
    }
  });
}

/** Returns when the client has heard an event. */
export function heard(client: RealtimeClient, type: Parameters<RealtimeClient['on']>[0]) {
  return new Promise((resolve) => {
    const off = client.on(type as '*', (event) => {
      off();
      resolve(event);
    });
  });
}

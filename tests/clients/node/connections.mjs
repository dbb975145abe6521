// Connections of openai-node that record their frames and can be waited on.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { OpenAIRealtimeWebSocket } from 'openai/realtime/websocket';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { ResponsesWS } from 'openai/resources/responses/ws';

const TIMEOUT_MS = 60_000;
export const ENDS = ['response.completed', 'response.incomplete', 'response.failed'];

export const WEATHER = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

export class Client {
  /** `shared` is the record of another client, to write into the same transcript. */
  constructor(url, key, shared = { transcript: [], exchanges: 0 }) {
    this.shared = shared;
    const fetch = recordingFetch(() => this.beginExchange());
    this.api = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0, fetch });
  }

  get transcript() {
    return this.shared.transcript;
  }

  /** A client with another key and the same transcript. */
  as(key) {
    return new Client(this.api.baseURL, key, this.shared);
  }

  /** A client of another server with the same transcript. */
  at(url) {
    return new Client(url, this.api.apiKey, this.shared);
  }

  /** Begins the record of the next connection or HTTP request, and returns its recorder. */
  beginExchange() {
    const number = ++this.shared.exchanges;
    return (side, frame) => this.transcript.push([number, side, frame]);
  }

  /** Connects to the Realtime API with the `ws` package and the key in a header. */
  async connectRealtime(model = 'demo') {
    const connection = new Connection(new OpenAIRealtimeWS({ model }, this.api), this);
    await connection.expect('session.created');
    return connection;
  }

  /** Connects to the Responses API, where the client sends the first frame. */
  connectResponses() {
    return new Connection(new ResponsesWS(this.api), this);
  }

  /** Connects with the WebSocket of the runtime, as in a browser: the key is a subprotocol. */
  async browse(key) {
    const api = new OpenAI({ baseURL: this.api.baseURL, apiKey: key });
    const sdk = new OpenAIRealtimeWebSocket({ model: 'demo', dangerouslyAllowBrowser: true }, api);
    const connection = new Connection(sdk, this);
    await connection.expect('session.created');
    return connection;
  }
}

/** A `fetch` that records each request: method and path, status, then the body or each event of a
 * stream. */
function recordingFetch(begin) {
  return async (url, options) => {
    const record = begin();
    const { pathname, search } = new URL(url);
    record('C', `${options.method.toUpperCase()} ${pathname}${search}`);
    if (options.body) record('C', options.body);
    const response = await fetch(url, options);
    record('S', `${response.status}${response.headers.has('retry-after') ? ', Retry-After' : ''}`);
    const stream = response.headers.get('content-type')?.startsWith('text/event-stream');
    const end = stream ? '\n\n' : null;
    const body = response.body?.pipeThrough(recordedBody(record, end)) ?? null;
    return new Response(body, response);
  };
}

function recordedBody(record, end) {
  const decoder = new TextDecoder();
  let buffer = '';
  return new TransformStream({
    transform(chunk, controller) {
      buffer += decoder.decode(chunk, { stream: true });
      const events = end === null ? [] : buffer.split(end);
      if (events.length) buffer = events.pop();
      for (const event of events) record('S', event.slice(event.lastIndexOf('data: ') + 6));
      controller.enqueue(chunk);
    },
    flush() {
      if (buffer) record('S', buffer);
    },
  });
}

export class Connection {
  constructor(sdk, client) {
    this.sdk = sdk;
    this.received = [];
    this.wake = () => {};
    this.ended = null;
    this.record = client.beginExchange();
    sdk.on('event', (event) => {
      this.record('S', JSON.stringify(event));
      this.received.push(event);
      this.wake();
    });
    // An error of the server is an event as well; an error of the transport ends the connection.
    sdk.on('error', (error) => {
      if (!error.error) this.end(null, error);
    });
    if (sdk instanceof ResponsesWS) {
      sdk.socket.on('close', (code) => this.end(code, null));
    } else {
      sdk.socket.addEventListener('close', ({ code }) => this.end(code, null));
    }
  }

  end(code, error) {
    if (this.ended) return;
    if (code) this.record('S', code === 1006 ? 'gone' : `close ${code}`);
    this.ended = { code, error };
    this.wake();
  }

  send(event) {
    this.record('C', JSON.stringify(event));
    this.sdk.send(event);
  }

  async recv() {
    const timeout = AbortSignal.timeout(TIMEOUT_MS);
    while (!this.received.length) {
      if (this.ended?.error) throw this.ended.error;
      assert(!this.ended, `closed with ${this.ended?.code}`);
      await this.nextFrame(timeout);
    }
    return this.received.shift();
  }

  nextFrame(timeout) {
    return new Promise((resolve, reject) => {
      this.wake = resolve;
      const late = () => reject(new Error('no frame arrived in time'));
      timeout.addEventListener('abort', late, { once: true });
    });
  }

  /** Checks that the next events have these types; returns the last one. */
  async expect(...types) {
    let event;
    for (const type of types) {
      event = await this.recv();
      assert.equal(event.type, type, JSON.stringify(event));
    }
    return event;
  }

  async receiveUntil(type) {
    const events = [await this.recv()];
    while (events.at(-1).type !== type) {
      assert.notEqual(events.at(-1).type, 'error', JSON.stringify(events.at(-1)));
      events.push(await this.recv());
    }
    return events;
  }

  /** Runs a response to its end; returns its events, which are numbered without a gap. */
  async runResponse(body) {
    this.send({ type: 'response.create', ...body });
    const events = [await this.recv()];
    while (!ENDS.includes(events.at(-1).type)) {
      assert.notEqual(events.at(-1).type, 'error', JSON.stringify(events.at(-1)));
      events.push(await this.recv());
    }
    assert.deepEqual(
      events.map((event) => event.sequence_number),
      [...events.keys()],
    );
    return events;
  }

  async addMessage(text, more = {}) {
    this.send({ type: 'conversation.item.create', item: user(text, more) });
    const added = await this.expect('conversation.item.added');
    await this.expect('conversation.item.done');
    return added;
  }

  async createResponse(response = {}) {
    this.send({ type: 'response.create', response });
    const events = await this.receiveUntil('response.done');
    await this.expect('rate_limits.updated');
    return events;
  }

  async runTurn(text, response = {}) {
    await this.addMessage(text);
    return (await this.createResponse(response)).at(-1).response;
  }

  async expectError() {
    return (await this.expect('error')).error;
  }

  /** The close code of the server, which sends no event before it. */
  async closeCode() {
    const timeout = AbortSignal.timeout(TIMEOUT_MS);
    while (!this.ended) await this.nextFrame(timeout);
    assert.deepEqual(this.received, []);
    return this.ended.code;
  }

  async checkUsable() {
    const done = await this.runTurn('hi', { max_output_tokens: 2 });
    assert(['completed', 'incomplete'].includes(done.status), done.status);
  }

  close() {
    if (this.ended) return;
    this.record('C', 'close');
    this.ended = { code: null, error: null };
    this.sdk.close();
  }
}

export function user(text, more = {}) {
  return { type: 'message', role: 'user', content: [{ type: 'input_text', text }], ...more };
}

/** The types of the events, repeated deltas once. */
export function kinds(events) {
  const types = events.map(({ type }) => type);
  return types.filter((type, n) => type !== types[n - 1]);
}

export function textOf(response) {
  return response.output.flatMap(({ content }) => content).map(({ text }) => text).join('');
}

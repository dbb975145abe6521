// One conversation over openai-node: what was said, in order, and ways to wait for it.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { OpenAIRealtimeWebSocket } from 'openai/realtime/websocket';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { ResponsesWS } from 'openai/resources/responses/ws';

const PATIENCE_MS = 60_000;
export const ENDS = ['response.completed', 'response.incomplete', 'response.failed'];

export const WEATHER = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

export class Client {
  /** `record` is that of another client, if they share one. */
  constructor(url, key, record = { transcript: [], exchanges: 0 }) {
    this.record = record;
    const fetch = recorded(() => this.exchange());
    this.api = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0, fetch });
  }

  get transcript() {
    return this.record.transcript;
  }

  /** With another key. */
  as(key) {
    return new Client(this.api.baseURL, key, this.record);
  }

  /** Of another server. */
  at(url) {
    return new Client(url, this.api.apiKey, this.record);
  }

  /** Writes down what is said on the next connection, or over HTTP from one request on. */
  exchange() {
    const number = ++this.record.exchanges;
    return (side, said) => this.transcript.push([number, side, said]);
  }

  /** Over the `ws` package, with the key in a header. */
  async talk(model = 'demo') {
    const talk = new Talk(new OpenAIRealtimeWS({ model }, this.api), this);
    await talk.expect('session.created');
    return talk;
  }

  /** The Responses API: nobody says anything first. */
  call() {
    return new Talk(new ResponsesWS(this.api), this);
  }

  /** Over the WebSocket of the runtime, as in a browser: the key is a subprotocol. */
  async browse(key) {
    const api = new OpenAI({ baseURL: this.api.baseURL, apiKey: key });
    const connection = new OpenAIRealtimeWebSocket({ model: 'demo', dangerouslyAllowBrowser: true }, api);
    const talk = new Talk(connection, this);
    await talk.expect('session.created');
    return talk;
  }
}

/** A `fetch` that writes down what goes over HTTP: what is asked, then the status, then the body, or
 * each event of a stream. */
function recorded(exchange) {
  return async (url, options) => {
    const note = exchange();
    const { pathname, search } = new URL(url);
    note('C', `${options.method.toUpperCase()} ${pathname}${search}`);
    if (options.body) note('C', options.body);
    const response = await fetch(url, options);
    note('S', `${response.status}${response.headers.has('retry-after') ? ', Retry-After' : ''}`);
    const stream = response.headers.get('content-type')?.startsWith('text/event-stream');
    const end = stream ? '\n\n' : null;
    const body = response.body?.pipeThrough(noted(note, end)) ?? null;
    return new Response(body, response);
  };
}

function noted(note, end) {
  const decoder = new TextDecoder();
  let said = '';
  return new TransformStream({
    transform(chunk, controller) {
      said += decoder.decode(chunk, { stream: true });
      const events = end === null ? [] : said.split(end);
      if (events.length) said = events.pop();
      for (const event of events) note('S', event.slice(event.lastIndexOf('data: ') + 6));
      controller.enqueue(chunk);
    },
    flush() {
      if (said) note('S', said);
    },
  });
}

export class Talk {
  constructor(connection, client) {
    this.connection = connection;
    this.waiting = [];
    this.wake = () => {};
    this.ended = null;
    this.note = client.exchange();
    connection.on('event', (event) => {
      this.note('S', JSON.stringify(event));
      this.waiting.push(event);
      this.wake();
    });
    // An error of the server is an event as well; one of the transport is the end.
    connection.on('error', (error) => {
      if (!error.error) this.end(null, error);
    });
    if (connection instanceof ResponsesWS) {
      connection.socket.on('close', (code) => this.end(code, null));
    } else {
      connection.socket.addEventListener('close', ({ code }) => this.end(code, null));
    }
  }

  end(code, error) {
    if (this.ended) return;
    if (code) this.note('S', code === 1006 ? 'gone' : `close ${code}`);
    this.ended = { code, error };
    this.wake();
  }

  send(event) {
    this.note('C', JSON.stringify(event));
    this.connection.send(event);
  }

  async recv() {
    const late = AbortSignal.timeout(PATIENCE_MS);
    while (!this.waiting.length) {
      if (this.ended?.error) throw this.ended.error;
      assert(!this.ended, `closed with ${this.ended?.code}`);
      await this.news(late);
    }
    return this.waiting.shift();
  }

  news(late) {
    return new Promise((resolve, reject) => {
      this.wake = resolve;
      late.addEventListener('abort', () => reject(new Error('nothing came')), { once: true });
    });
  }

  /** The next events are of these types; gives the last. */
  async expect(...types) {
    let event;
    for (const type of types) {
      event = await this.recv();
      assert.equal(event.type, type, JSON.stringify(event));
    }
    return event;
  }

  async until(type) {
    const events = [await this.recv()];
    while (events.at(-1).type !== type) {
      assert.notEqual(events.at(-1).type, 'error', JSON.stringify(events.at(-1)));
      events.push(await this.recv());
    }
    return events;
  }

  /** A response to its end: its events, numbered without a gap. */
  async respond(body) {
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

  async say(text, more = {}) {
    this.send({ type: 'conversation.item.create', item: user(text, more) });
    const added = await this.expect('conversation.item.added');
    await this.expect('conversation.item.done');
    return added;
  }

  async answer(response = {}) {
    this.send({ type: 'response.create', response });
    const events = await this.until('response.done');
    await this.expect('rate_limits.updated');
    return events;
  }

  async ask(text, response = {}) {
    await this.say(text);
    return (await this.answer(response)).at(-1).response;
  }

  async error() {
    return (await this.expect('error')).error;
  }

  /** The code the server closes with; nothing comes before it. */
  async closed() {
    const late = AbortSignal.timeout(PATIENCE_MS);
    while (!this.ended) await this.news(late);
    assert.deepEqual(this.waiting, []);
    return this.ended.code;
  }

  async usable() {
    const done = await this.ask('hi', { max_output_tokens: 2 });
    assert(['completed', 'incomplete'].includes(done.status), done.status);
  }

  close() {
    if (this.ended) return;
    this.note('C', 'close');
    this.ended = { code: null, error: null };
    this.connection.close();
  }
}

export function user(text, more = {}) {
  return { type: 'message', role: 'user', content: [{ type: 'input_text', text }], ...more };
}

/** The types, repeated deltas once. */
export function kinds(events) {
  const types = events.map(({ type }) => type);
  return types.filter((type, n) => type !== types[n - 1]);
}

export function textOf(response) {
  return response.output.flatMap(({ content }) => content).map(({ text }) => text).join('');
}

// One conversation over openai-node: what was said, in order, and ways to wait for it.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { OpenAIRealtimeWebSocket } from 'openai/realtime/websocket';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { ResponsesWS } from 'openai/resources/responses/ws';

const PATIENCE_MS = 60_000;
export const ENDS = ['response.completed', 'response.incomplete', 'response.failed'];

export class Client {
  constructor(url, key) {
    this.api = new OpenAI({ baseURL: url, apiKey: key });
    this.transcript = [];
    this.talks = 0;
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

export class Talk {
  constructor(connection, client) {
    this.connection = connection;
    this.waiting = [];
    this.wake = () => {};
    this.ended = null;
    this.number = ++client.talks;
    this.note = (side, frame) => client.transcript.push([this.number, side, frame]);
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
    if (code) this.note('S', `close ${code}`);
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

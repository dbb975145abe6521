/** Responses as streams: reading, interrupting, errors, and lost connections. */

import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import {
  ConnectionClosedError,
  EventRefusedError,
  ResponseFailedError,
  type ResponseStream,
} from '../../src/client/index.js';
import { assistantItem, receiveAsk, response, sendBeginning, sendDelta, sendEnd } from './scripted_responses.js';
import { ScriptedServer, type ServerConnection } from './scripted_server.js';

let server: ScriptedServer;
beforeEach(async () => {
  server = await ScriptedServer.start();
});
afterEach(() => {
  server.stop();
});

async function readDeltas(stream: ResponseStream): Promise<string[]> {
  const deltas: string[] = [];
  for await (const delta of stream) deltas.push(delta);
  return deltas;
}

async function ask(settings = {}) {
  const { client, connection } = await server.createConnectedClient();
  const stream = client.ask('hello', settings);
  const { item, request } = await receiveAsk(connection);
  return { client, connection, stream, item, request };
}

/** Cut the connection once the response has begun with `text`. */
async function cutAfter(connection: ServerConnection, stream: ResponseStream, text: string): Promise<void> {
  sendBeginning(connection, 'r', text);
  await expect.poll(() => stream.text).toBe(text);
  connection.terminate();
}

describe('a response', () => {
  it('is awaited for its text, and iterated over as often as wanted', async () => {
    const { connection, stream, request } = await ask({ temperature: 0 });
    expect(request.response).toEqual({ temperature: 0 });
    const reading = readDeltas(stream);
    sendBeginning(connection, 'r', 'He');
    await expect.poll(() => stream.text).toBe('He');
    expect(stream.status).toBe('in_progress');
    sendDelta(connection, 'r', 'llo');
    sendEnd(connection, 'r', 'Hello');
    expect(await stream).toBe('Hello');
    expect((await reading).join('|')).toBe('He|llo');
    expect(await readDeltas(stream)).toEqual(['Hello']);
    expect([stream.status, stream.usage?.output_tokens, stream.response?.id]).toEqual(['completed', 1, 'r']);
  });

  it('has its reasoning beside its text', async () => {
    const { connection, stream } = await ask({ reasoning: { effort: 'low' } });
    const think = (delta: string): void => {
      connection.send('response.reasoning_text.delta', { response_id: 'r', item_id: 'rs', delta });
    };
    connection.send('response.created', { response: response('r', 'in_progress') });
    think('They greet');
    think(' me.');
    connection.send('response.reasoning_text.delta', { response_id: 'other', item_id: 'x', delta: 'No.' });
    await expect.poll(() => stream.reasoning).toBe('They greet me.');
    expect(stream.text).toBe('');
    sendBeginning(connection, 'r', 'Hi'); // a snapshot announces the response again
    await expect.poll(() => stream.text).toBe('Hi');
    expect(stream.reasoning).toBe('');
    think('Once more.');
    sendEnd(connection, 'r', 'Hi');
    expect(await stream).toBe('Hi');
    expect(stream.reasoning).toBe('Once more.');
  });

  it('is not requested if its message is refused', async () => {
    const { client, connection } = await server.createConnectedClient();
    const stream = client.ask('too long');
    const { event_id } = await connection.receive('conversation.item.create');
    connection.send('error', { error: { type: 'x', code: 'too_long', message: 'm', param: 'item', event_id } });
    await expect(stream.then()).rejects.toMatchObject({ code: 'too_long', param: 'item' });
    const next = client.respond();
    const request = await connection.receive('response.create');
    const error = { type: 'x', code: 'busy', message: 'm', param: null, event_id: request.event_id };
    connection.send('error', { error });
    await expect(readDeltas(next)).rejects.toBeInstanceOf(EventRefusedError);
  });

  it('throws if it failed, and returns what it has if it was cut short', async () => {
    const { client, connection, stream } = await ask();
    sendBeginning(connection, 'r', 'Hel');
    const error = { type: 'server_error', code: 'engine_failed', message: 'The engine failed.' };
    const status_details = { type: 'failed', error };
    connection.send('response.done', { response: response('r', 'failed', 'Hel', { status_details }) });
    const failure: unknown = await stream.then(null, (reason: unknown) => reason);
    expect(failure).toBeInstanceOf(ResponseFailedError);
    expect(failure).toMatchObject({ code: 'engine_failed', text: 'Hel' });
    const cut = client.respond();
    await connection.receive('response.create');
    sendBeginning(connection, 'r2');
    sendEnd(connection, 'r2', 'Hello', 'incomplete');
    expect([await cut, cut.status]).toEqual(['Hello', 'incomplete']);
  });

  it('throws if the connection is closed for good, before or during it', async () => {
    const { client, connection, stream } = await ask();
    const refused = client.ask('queued');
    sendBeginning(connection, 'r', 'He');
    await expect.poll(() => stream.text).toBe('He');
    void client.close(0);
    for (const one of [stream, refused, client.ask('later')]) {
      await expect(one.then()).rejects.toBeInstanceOf(ConnectionClosedError);
    }
  });

  it('is interrupted, and truncated to what was heard', async () => {
    const { client, connection, stream } = await ask();
    sendBeginning(connection, 'r', 'Hi 👩 and more');
    const interrupted = stream.interrupt({ keep: 'Hi 👩'.length });
    expect((await connection.receive('response.cancel')).response_id).toBe('r');
    sendEnd(connection, 'r', 'Hi 👩 and more', 'cancelled');
    const truncate = await connection.receive('conversation.item.truncate');
    expect(truncate).toMatchObject({ item_id: 'a', text_end: 4 });
    connection.send('conversation.item.truncated', { item_id: 'a', content_index: 0, text_end: 4 });
    expect(await interrupted).toBe('Hi 👩');
    expect([stream.text, stream.status]).toEqual(['Hi 👩', 'cancelled']);
    expect(client.conversation.items.at(-1)).toMatchObject({ content: [{ text: 'Hi 👩' }] });
    const nothing = stream.interrupt({ keep: 0 });
    await connection.receive('conversation.item.delete');
    connection.send('conversation.item.deleted', { item_id: 'a' });
    expect(await nothing).toBe('');
  });

  it('is not cancelled twice if it ended meanwhile', async () => {
    const { connection, stream } = await ask();
    sendBeginning(connection, 'r', 'Hi');
    const cancelled = stream.cancel();
    const { event_id } = await connection.receive('response.cancel');
    const error = { type: 'x', code: 'response_cancel_not_active', message: 'm', param: null, event_id };
    connection.send('error', { error });
    sendEnd(connection, 'r', 'Hi');
    expect(await cancelled).toBe('Hi');
    expect(await stream.cancel()).toBe('Hi');
  });
});

describe('a response whose connection is lost', () => {
  it('continues after an exact resume', async () => {
    const { connection, stream } = await ask();
    const reading = readDeltas(stream);
    await cutAfter(connection, stream, 'He');
    const again = await server.accept();
    await again.acceptResume('exact', {}, () => {
      sendDelta(again, 'r', 'llo');
      sendEnd(again, 'r', 'Hello');
    });
    expect(await stream).toBe('Hello');
    expect(await reading).toEqual(['He', 'llo']);
  });

  it('is requested again, under the same id, if its request was lost', async () => {
    const { connection, stream, request } = await ask();
    connection.terminate();
    const again = await server.accept();
    await again.acceptResume('exact');
    expect((await again.receive('response.create')).event_id).toBe(request.event_id);
    sendBeginning(again, 'r', 'Hello');
    sendEnd(again, 'r', 'Hello');
    expect(await stream).toBe('Hello');
  });

  it('continues after a snapshot that announces it again', async () => {
    const { connection, stream, item } = await ask();
    const reading = readDeltas(stream);
    await cutAfter(connection, stream, 'Hel');
    const again = await server.accept();
    await again.acceptResume('snapshot', {}, () => {
      again.sendItemAdded(item);
      sendBeginning(again, 'r', 'He', 'llo');
    });
    await expect.poll(() => stream.text).toBe('Hello');
    sendEnd(again, 'r', 'Hello');
    expect(await stream).toBe('Hello');
    expect((await reading).join('')).toBe('Hello');
  });

  it('is found in a snapshot, if it ended meanwhile', async () => {
    const { connection, stream, item, request } = await ask();
    await cutAfter(connection, stream, 'Hel');
    const again = await server.accept();
    await again.acceptResume('snapshot', {}, () => {
      again.sendItemAdded(item);
      again.sendItemAdded(assistantItem('Hello'), 'unknown: at the end');
    });
    const { event_id } = await again.receive('response.create');
    expect(event_id).toBe(request.event_id);
    const error = { type: 'x', code: 'response_already_created', message: 'm', param: null, event_id };
    again.send('error', { error });
    expect(await stream).toBe('Hello');
    expect(stream.status).toBe('completed');
  });

  it('ends once, though the server repeats its end to each request sent again', async () => {
    const { client, connection, stream, item } = await ask();
    await cutAfter(connection, stream, 'Hel');
    const interrupted = stream.interrupt({ keep: 20 });
    const again = await server.accept();
    await again.acceptResume('snapshot', {}, () => {
      again.sendItemAdded(item);
      again.sendItemAdded(assistantItem('He', 'incomplete'), 'unknown: at the end');
    });
    const { event_id } = await again.receive('response.cancel');
    await again.receive('response.create');
    again.send('response.done', { response: response('r', 'cancelled', 'He') });
    again.send('response.created', { response: response('r', 'in_progress') });
    again.send('response.done', { response: response('r', 'cancelled', 'He') });
    expect(await interrupted).toBe('He');
    expect(client.conversation.items.at(-1)).toMatchObject({ content: [{ text: 'He' }] });
    expect(client.pendingEvents.map((event) => event.event_id)).not.toContain(event_id);
  });

  it('is requested again, once and with its settings, in a new session', async () => {
    const { client, connection, stream, request } = await ask({ temperature: 0 });
    const reading = readDeltas(stream);
    await cutAfter(connection, stream, 'Hel');
    (await server.accept()).sendSessionCreated('sess_other');
    const fresh = await server.accept();
    fresh.sendSessionCreated('sess_2');
    const { item } = await fresh.receive('conversation.item.create');
    fresh.sendItemAdded(item);
    const repeated = await fresh.receive('response.create');
    expect(repeated.response).toEqual({ temperature: 0 });
    expect(repeated.event_id).not.toBe(request.event_id);
    sendBeginning(fresh, 'r2', 'Good');
    sendEnd(fresh, 'r2', 'Good day');
    expect(await stream).toBe('Good day');
    const [before, ...after] = await reading;
    expect([before, after.join('')]).toEqual(['Hel', 'Good day']);
    expect(client.pendingEvents).toEqual([]);
  });
});

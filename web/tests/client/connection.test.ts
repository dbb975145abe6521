import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ConnectionClosedError, EventRefusedError, type ConnectionState } from '../../src/client/index.js';
import { waitForEvent, waitForPhase, ScriptedServer } from './scripted_server.js';

let server: ScriptedServer;
beforeEach(async () => {
  server = await ScriptedServer.start();
});
afterEach(() => {
  server.stop();
});

describe('a connection', () => {
  it('names the model, sends its key, and configures the session first', async () => {
    const client = server.createClient({
      model: 'demo',
      session: { instructions: 'Be brief.' },
      getApiKey: () => Promise.resolve('ek_1'),
    });
    client.sendUserMessage('sent before the connection was open');
    const connection = await server.accept();
    expect(connection.query.get('model')).toBe('demo');
    expect(connection.protocols).toEqual(['realtime', 'openai-insecure-api-key.ek_1']);
    connection.sendSessionCreated();
    const update = await connection.receive('session.update');
    expect(update.session).toEqual({ type: 'realtime', instructions: 'Be brief.' });
    await connection.receive('conversation.item.create');
  });

  it('reports its state', async () => {
    const states: ConnectionState['phase'][] = [];
    const client = server.createClient();
    client.state.subscribe(({ phase }) => states.push(phase));
    (await server.accept()).sendSessionCreated();
    await waitForPhase(client, 'open');
    expect(states).toEqual(['open']);
    client.reconnect('a test');
    expect(client.state.value).toMatchObject({ phase: 'waiting', attempt: 1, reason: 'a test' });
  });

  it.each([1001, 1011, 1012, 1013])('reconnects after close code %i', async (code) => {
    const { client, connection } = await server.createConnectedClient();
    connection.socket.close(code);
    const reconnected = await server.accept();
    expect(reconnected.query.get('session_id')).toBe('sess_1');
    await reconnected.acceptResume('exact');
    expect(await waitForPhase(client, 'open')).toMatchObject({ resumeOutcome: 'exact', kv: 'hot' });
  });

  it('resumes after a loss with its last event id and its newest token', async () => {
    const client = server.createClient();
    const connection = await server.accept();
    connection.sendSessionCreated('sess_1', { resume: { session_id: 'sess_1', token: 'one' } });
    connection.send('rate_limits.updated', { event_id: 'last', rate_limits: [] });
    await waitForEvent(client, 'rate_limits.updated');
    connection.terminate();
    const second = await server.accept();
    expect(second.query.get('last_event_id')).toBe('last');
    expect(second.query.get('resume_token')).toBe('one');
    await second.acceptResume('exact', { token: 'two' });
    await waitForPhase(client, 'open');
    second.terminate();
    expect((await server.accept()).query.get('resume_token')).toBe('two');
  });

  it('forks another session with that session’s token', async () => {
    const client = server.createClient({ fork: { sessionId: 'sess_0', itemId: 'item_3', token: 'zero' } });
    const connection = await server.accept();
    expect(Object.fromEntries(connection.query)).toEqual({
      fork: 'sess_0',
      at: 'item_3',
      resume_token: 'zero',
    });
    connection.sendSessionCreated('sess_1', { resume: { session_id: 'sess_1', token: 'one' } });
    await waitForPhase(client, 'open');
    connection.terminate();
    const reconnected = await server.accept();
    expect(reconnected.query.has('fork')).toBe(false);
    expect(reconnected.query.get('resume_token')).toBe('one');
  });

  it.each([4001, 4003, 1008, 1000])('does not reconnect after close code %i', async (code) => {
    const { client, connection } = await server.createConnectedClient();
    const receipt = client.sendUserMessage('never acknowledged');
    connection.socket.close(code, 'because');
    const { error } = await waitForPhase(client, 'closed');
    expect(error).toMatchObject({ code: `close_${code}`, message: 'because' });
    await expect(receipt.acknowledged).rejects.toBeInstanceOf(ConnectionClosedError);
    expect(client.pendingEvents).toMatchObject([{ event_id: receipt.eventId }]);
    expect(() => client.sendUserMessage('more')).toThrow(ConnectionClosedError);
  });

  it('closes when no key can be obtained', async () => {
    const client = server.createClient({
      getApiKey: () => Promise.reject(new ConnectionClosedError('invalid_api_key', 'The key is wrong.')),
    });
    expect((await waitForPhase(client, 'closed')).error.code).toBe('invalid_api_key');
  });

  it('retries when fetching the key has failed', async () => {
    let attempts = 0;
    const client = server.createClient({
      getApiKey: () =>
        ++attempts < 3 ? Promise.reject(new Error('no network')) : Promise.resolve('ek_1'),
    });
    (await server.accept()).sendSessionCreated();
    await waitForPhase(client, 'open');
    expect(attempts).toBe(3);
  });

  it('reconnects if the server does not acknowledge in time', async () => {
    const { client, connection } = await server.createConnectedClient({ ackTimeout_ms: 50 });
    const sent = client.sendUserMessage('hello');
    expect((await connection.receive('conversation.item.create')).event_id).toBe(sent.eventId);
    const reconnected = await server.accept();
    await reconnected.acceptResume('exact');
    expect((await reconnected.receive('conversation.item.create')).event_id).toBe(sent.eventId);
  });

  it('detects a dead server with a liveness check', async () => {
    const { client, connection } = await server.createConnectedClient();
    client.checkLiveness(10);
    await connection.receive('session.update');
    expect((await waitForPhase(client, 'waiting')).reason).toBe('the server does not respond');
  });

  it('reconnects after a malformed frame', async () => {
    const { client, connection } = await server.createConnectedClient();
    connection.socket.send('{');
    await (await server.accept()).acceptResume('exact');
    await waitForPhase(client, 'open');
    expect(client.session?.id).toBe('sess_1');
  });
});

describe('a sent event', () => {
  it('is acknowledged or refused individually', async () => {
    const { client, connection } = await server.createConnectedClient();
    const good = client.sendUserMessage('hello');
    const bad = client.updateSession({ temperature: 9 });
    const { item } = await connection.receive('conversation.item.create');
    connection.sendItemAdded(item);
    expect(await good.acknowledged).toMatchObject({ type: 'conversation.item.added' });
    const event_id = (await connection.receive('session.update')).event_id;
    const error = { type: 'x', code: 'decimal_above_max_value', message: 'no', param: 'p', event_id };
    connection.send('error', { error });
    await expect(bad.acknowledged).rejects.toBeInstanceOf(EventRefusedError);
    expect(client.pendingEvents).toEqual([]);
    expect(client.state.value.phase).toBe('open');
  });

  it('is sent again in order with the same id, only if unacknowledged', async () => {
    const { client, connection } = await server.createConnectedClient();
    client.sendUserMessage('acknowledged');
    connection.sendItemAdded((await connection.receive('conversation.item.create')).item);
    await waitForEvent(client, 'conversation.item.added');
    const second = client.sendUserMessage('lost');
    const responseRequest = client.createResponse();
    await connection.receive('conversation.item.create');
    await connection.receive('response.create');
    connection.terminate();
    await waitForPhase(client, 'waiting');
    const third = client.sendUserMessage('sent while disconnected');
    const reconnected = await server.accept();
    await reconnected.acceptResume('exact');
    expect((await reconnected.receive('conversation.item.create')).event_id).toBe(second.eventId);
    expect((await reconnected.receive('response.create')).event_id).toBe(responseRequest.eventId);
    expect((await reconnected.receive('conversation.item.create')).event_id).toBe(third.eventId);
  });

  it('is not sent again if a missed event acknowledges it', async () => {
    const { client, connection } = await server.createConnectedClient();
    const receipt = client.sendUserMessage('applied, but the acknowledgement was lost');
    const { item } = await connection.receive('conversation.item.create');
    connection.terminate();
    const reconnected = await server.accept();
    await reconnected.acceptResume('exact', {}, () => {
      reconnected.sendItemAdded(item);
    });
    await receipt.acknowledged;
    const next = client.sendUserMessage('next');
    expect((await reconnected.receive('conversation.item.create')).event_id).toBe(next.eventId);
  });

  it('requests a response again that a snapshot does not contain', async () => {
    const { client, connection } = await server.createConnectedClient();
    const userMessage = { id: 'u', type: 'message', role: 'user', content: [] };
    connection.sendItemAdded(userMessage);
    connection.send('response.created', {
      response: { id: 'resp_1', status: 'in_progress', output: [], conversation_id: 'c' },
    });
    await waitForEvent(client, 'response.created');
    connection.terminate();
    const reconnected = await server.accept();
    await reconnected.acceptResume('snapshot', {}, () => {
      reconnected.sendItemAdded(userMessage);
    });
    await reconnected.receive('response.create');
  });

  it('is not acknowledged by a response already announced', async () => {
    const { client, connection } = await server.createConnectedClient();
    const response = { id: 'resp_1', status: 'in_progress', output: [], conversation_id: 'c' };
    client.createResponse();
    await connection.receive('response.create');
    connection.send('response.created', { response });
    await waitForEvent(client, 'response.created');
    const second = client.createResponse();
    await connection.receive('response.create');
    connection.send('response.created', { response });
    await waitForEvent(client, 'response.created');
    expect(client.pendingEvents.map((event) => event.event_id)).toEqual([second.eventId]);
  });

  it('is refused if its frame would be too large, without closing the connection', async () => {
    const { client, connection } = await server.createConnectedClient({ frameMax_bytes: 1000 });
    const refused = { name: 'EventRefusedError', code: 'frame_too_large' };
    await expect(client.sendUserMessage('x'.repeat(1000)).acknowledged).rejects.toMatchObject(refused);
    await expect(client.sendUserMessage('😀'.repeat(300)).acknowledged).rejects.toMatchObject(refused);
    client.sendUserMessage('x'.repeat(700));
    await connection.receive('conversation.item.create');
    expect(client.state.value.phase).toBe('open');
  });

  it('is refused beyond the queue limit', async () => {
    const { client } = await server.createConnectedClient({ pendingEventsMax: 2 });
    client.sendUserMessage('1');
    client.sendUserMessage('2');
    expect(() => client.sendUserMessage('3')).toThrow(RangeError);
  });
});

describe('a session that the server has lost', () => {
  const message = (id: string, role: string, text: string) => ({
    id,
    type: 'message',
    role,
    content: [{ type: role === 'user' ? 'input_text' : 'output_text', text }],
  });

  it('is rehydrated with its settings, and an unfinished response is requested again', async () => {
    const { client, connection } = await server.createConnectedClient();
    connection.send('session.updated', {
      session: { id: 'sess_1', model: 'm', instructions: 'Be brief.', temperature: 0.5 },
    });
    connection.sendItemAdded(message('a', 'user', 'hi'));
    connection.sendItemAdded(message('b', 'assistant', 'hello'), 'a');
    connection.sendItemAdded(message('c', 'user', 'a story'), 'b');
    connection.send('response.created', {
      response: { id: 'resp_1', status: 'in_progress', output: [], conversation_id: 'x' },
    });
    connection.send('response.output_item.added', {
      response_id: 'resp_1',
      item: message('d', 'assistant', ''),
    });
    connection.sendItemAdded(message('d', 'assistant', 'Once'), 'c');
    connection.send('rate_limits.updated');
    await waitForEvent(client, 'rate_limits.updated');
    connection.terminate();
    await waitForPhase(client, 'waiting');
    client.sendUserMessage('later');

    const expiredConnection = await server.accept();
    expiredConnection.send('error', {
      error: { type: 'x', code: 'session_not_found', message: 'gone', param: null, event_id: null },
    });
    expiredConnection.socket.close(1008);

    const fresh = await server.accept();
    expect(fresh.query.has('session_id')).toBe(false);
    fresh.sendSessionCreated('sess_2');
    expect(await waitForPhase(client, 'open')).toMatchObject({ resumeOutcome: 'rehydrated' });
    expect((await fresh.receive('session.update')).session).toMatchObject({
      instructions: 'Be brief.',
      temperature: 0.5,
    });
    for (const id of ['a', 'b', 'c']) {
      expect((await fresh.receive('conversation.item.create')).item).toMatchObject({ id });
    }
    await fresh.receive('response.create');
    const later = (await fresh.receive('conversation.item.create')).item;
    expect(later).toMatchObject({ content: [{ text: 'later' }] });
    expect(client.resumePoint?.sessionId).toBe('sess_2');
  });

  it('is rehydrated on a server that does not support resume', async () => {
    const { client, connection } = await server.createConnectedClient();
    connection.sendItemAdded(message('a', 'user', 'hi'));
    await waitForEvent(client, 'conversation.item.added');
    connection.terminate();
    (await server.accept()).sendSessionCreated('sess_other');
    const fresh = await server.accept();
    fresh.sendSessionCreated('sess_2');
    expect((await fresh.receive('conversation.item.create')).item).toMatchObject({ id: 'a' });
  });

  it('closes the connection if rehydration is disabled', async () => {
    const { client, connection } = await server.createConnectedClient({ rehydrate: false });
    connection.terminate();
    (await server.accept()).sendSessionCreated('sess_other');
    expect((await waitForPhase(client, 'closed')).error.code).toBe('session_not_found');
  });
});

describe('leaving', () => {
  it('waits for what was sent, but not for ever', async () => {
    const { client, connection } = await server.createConnectedClient();
    client.sendUserMessage('remember');
    const closed = client.close();
    const { item } = await connection.receive('conversation.item.create');
    expect(client.state.value.phase).toBe('open');
    connection.sendItemAdded(item);
    await closed;
    expect(client.state.value).toMatchObject({ phase: 'closed', error: { code: 'disconnected' } });
    expect([client.pendingEvents, client.resumePoint?.sessionId]).toEqual([[], 'sess_1']);

    const { client: other } = await server.createConnectedClient();
    other.sendUserMessage('never acknowledged');
    await other.close(20);
    expect([other.state.value.phase, other.pendingEvents.length]).toEqual(['closed', 1]);
    await server.createClient().close();
  });

  it('with the session deleted does not reconnect', async () => {
    const { client, connection } = await server.createConnectedClient();
    const deleted = client.deleteSession();
    await connection.receive('session.close');
    connection.send('session.closed', { reason: 'client' });
    await deleted;
    expect(client.state.value.phase).toBe('closed');
  });
});

import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Ended, Refused, type ConnectionState } from '../../src/client/index.js';
import { heard, phase, Scripted } from './scripted_server.js';

let server: Scripted;
beforeEach(async () => {
  server = await Scripted.start();
});
afterEach(() => {
  server.stop();
});

describe('a connection', () => {
  it('says which model, shows its key, and sets the session up first', async () => {
    const client = server.client({
      model: 'demo',
      session: { instructions: 'Be brief.' },
      credentials: () => Promise.resolve('ek_1'),
    });
    client.say('typed before there was a connection');
    const peer = await server.accept();
    expect(peer.query.get('model')).toBe('demo');
    expect(peer.protocols).toEqual(['realtime', 'openai-insecure-api-key.ek_1']);
    peer.created();
    const update = await peer.hear('session.update');
    expect(update.session).toEqual({ type: 'realtime', instructions: 'Be brief.' });
    await peer.hear('conversation.item.create');
  });

  it('tells of its state', async () => {
    const states: ConnectionState['phase'][] = [];
    const client = server.client();
    client.state.subscribe(({ phase }) => states.push(phase));
    (await server.accept()).created();
    await phase(client, 'open');
    expect(states).toEqual(['open']);
    client.drop('a test');
    expect(client.state.value).toMatchObject({ phase: 'waiting', attempt: 1, reason: 'a test' });
  });

  it.each([1001, 1011, 1012, 1013])('comes back after close code %i', async (code) => {
    const { client, peer } = await server.begun();
    peer.socket.close(code);
    const again = await server.accept();
    expect(again.query.get('session_id')).toBe('sess_1');
    await again.resumed('exact');
    expect(await phase(client, 'open')).toMatchObject({ begun: 'exact', kv: 'hot' });
  });

  it('comes back after a cut cable, with the last event it has seen, and the newest token', async () => {
    const client = server.client();
    const peer = await server.accept();
    peer.created('sess_1', { resume: { session_id: 'sess_1', token: 'one' } });
    peer.say('rate_limits.updated', { event_id: 'last', rate_limits: [] });
    await heard(client, 'rate_limits.updated');
    peer.cut();
    const second = await server.accept();
    expect(second.query.get('last_event_id')).toBe('last');
    expect(second.query.get('resume_token')).toBe('one');
    await second.resumed('exact', { token: 'two' });
    await phase(client, 'open');
    second.cut();
    expect((await server.accept()).query.get('resume_token')).toBe('two');
  });

  it('begins as another session was, and shows the token of that one', async () => {
    const client = server.client({ fork: { session: 'sess_0', at: 'item_3', token: 'zero' } });
    const peer = await server.accept();
    expect(Object.fromEntries(peer.query)).toEqual({
      fork: 'sess_0',
      at: 'item_3',
      resume_token: 'zero',
    });
    peer.created('sess_1', { resume: { session_id: 'sess_1', token: 'one' } });
    await phase(client, 'open');
    peer.cut();
    const again = await server.accept();
    expect(again.query.has('fork')).toBe(false);
    expect(again.query.get('resume_token')).toBe('one');
  });

  it.each([4001, 4003, 1008, 1000])('stays away after close code %i', async (code) => {
    const { client, peer } = await server.begun();
    const receipt = client.say('never confirmed');
    peer.socket.close(code, 'because');
    const { error } = await phase(client, 'ended');
    expect(error).toMatchObject({ code: `close_${code}`, message: 'because' });
    await expect(receipt.acknowledged).rejects.toBeInstanceOf(Ended);
    expect(client.pending).toMatchObject([{ event_id: receipt.eventId }]);
    expect(() => client.say('more')).toThrow(Ended);
  });

  it('gives up when there is no key to be had', async () => {
    const client = server.client({
      credentials: () => Promise.reject(new Ended('invalid_api_key', 'The key is wrong.')),
    });
    expect((await phase(client, 'ended')).error.code).toBe('invalid_api_key');
  });

  it('tries again when the key could not be fetched', async () => {
    let asked = 0;
    const client = server.client({
      credentials: () =>
        ++asked < 3 ? Promise.reject(new Error('no network')) : Promise.resolve('ek_1'),
    });
    (await server.accept()).created();
    await phase(client, 'open');
    expect(asked).toBe(3);
  });

  it('takes a server that does not acknowledge for lost', async () => {
    const { client, peer } = await server.begun({ ackTimeout_ms: 50 });
    const sent = client.say('hello');
    expect((await peer.hear('conversation.item.create')).event_id).toBe(sent.eventId);
    const again = await server.accept();
    await again.resumed('exact');
    expect((await again.hear('conversation.item.create')).event_id).toBe(sent.eventId);
  });

  it('finds out whether the server is still there', async () => {
    const { client, peer } = await server.begun();
    client.check(10);
    await peer.hear('session.update');
    expect((await phase(client, 'waiting')).reason).toBe('the server does not answer');
  });

  it('does not choke on a frame that is no event', async () => {
    const { client, peer } = await server.begun();
    peer.socket.send('{');
    await (await server.accept()).resumed('exact');
    await phase(client, 'open');
    expect(client.session?.id).toBe('sess_1');
  });
});

describe('what is sent', () => {
  it('is confirmed, or refused, one by one', async () => {
    const { client, peer } = await server.begun();
    const good = client.say('hello');
    const bad = client.update({ temperature: 9 });
    const { item } = await peer.hear('conversation.item.create');
    peer.added(item);
    expect(await good.acknowledged).toMatchObject({ type: 'conversation.item.added' });
    const event_id = (await peer.hear('session.update')).event_id;
    const error = { type: 'x', code: 'decimal_above_max_value', message: 'no', param: 'p', event_id };
    peer.say('error', { error });
    await expect(bad.acknowledged).rejects.toBeInstanceOf(Refused);
    expect(client.pending).toEqual([]);
    expect(client.state.value.phase).toBe('open');
  });

  it('is sent again, in order and with the same ids, only if it was not confirmed', async () => {
    const { client, peer } = await server.begun();
    client.say('confirmed');
    peer.added((await peer.hear('conversation.item.create')).item);
    await heard(client, 'conversation.item.added');
    const second = client.say('lost');
    const answer = client.respond();
    await peer.hear('conversation.item.create');
    await peer.hear('response.create');
    peer.cut();
    await phase(client, 'waiting');
    const third = client.say('said while there was no connection');
    const again = await server.accept();
    await again.resumed('exact');
    expect((await again.hear('conversation.item.create')).event_id).toBe(second.eventId);
    expect((await again.hear('response.create')).event_id).toBe(answer.eventId);
    expect((await again.hear('conversation.item.create')).event_id).toBe(third.eventId);
  });

  it('is not sent again if what was missed confirms it', async () => {
    const { client, peer } = await server.begun();
    const receipt = client.say('done, but the answer was lost');
    const { item } = await peer.hear('conversation.item.create');
    peer.cut();
    const again = await server.accept();
    await again.resumed('exact', {}, () => {
      again.added(item);
    });
    await receipt.acknowledged;
    const next = client.say('next');
    expect((await again.hear('conversation.item.create')).event_id).toBe(next.eventId);
  });

  it('asks anew for an answer that a snapshot does not know', async () => {
    const { client, peer } = await server.begun();
    const said = { id: 'u', type: 'message', role: 'user', content: [] };
    peer.added(said);
    peer.say('response.created', {
      response: { id: 'resp_1', status: 'in_progress', output: [], conversation_id: 'c' },
    });
    await heard(client, 'response.created');
    peer.cut();
    const again = await server.accept();
    await again.resumed('snapshot', {}, () => {
      again.added(said);
    });
    await again.hear('response.create');
  });

  it('is not confirmed by an answer that was known already', async () => {
    const { client, peer } = await server.begun();
    const response = { id: 'resp_1', status: 'in_progress', output: [], conversation_id: 'c' };
    client.respond();
    await peer.hear('response.create');
    peer.say('response.created', { response });
    await heard(client, 'response.created');
    const second = client.respond();
    await peer.hear('response.create');
    peer.say('response.created', { response });
    await heard(client, 'response.created');
    expect(client.pending.map((event) => event.event_id)).toEqual([second.eventId]);
  });

  it('is refused where its frame would be too large, and the connection is good', async () => {
    const { client, peer } = await server.begun({ frameMax_bytes: 1000 });
    const refused = { name: 'Refused', code: 'frame_too_large' };
    await expect(client.say('x'.repeat(1000)).acknowledged).rejects.toMatchObject(refused);
    await expect(client.say('😀'.repeat(300)).acknowledged).rejects.toMatchObject(refused);
    client.say('x'.repeat(700));
    await peer.hear('conversation.item.create');
    expect(client.state.value.phase).toBe('open');
  });

  it('has a bound', async () => {
    const { client } = await server.begun({ pendingMax: 2 });
    client.say('1');
    client.say('2');
    expect(() => client.say('3')).toThrow(RangeError);
  });
});

describe('a session that the server has lost', () => {
  const message = (id: string, role: string, text: string) => ({
    id,
    type: 'message',
    role,
    content: [{ type: role === 'user' ? 'input_text' : 'output_text', text }],
  });

  it('is told again, with its settings, and a half answer is asked for anew', async () => {
    const { client, peer } = await server.begun();
    peer.say('session.updated', {
      session: { id: 'sess_1', model: 'm', instructions: 'Be brief.', temperature: 0.5 },
    });
    peer.added(message('a', 'user', 'hi'));
    peer.added(message('b', 'assistant', 'hello'), 'a');
    peer.added(message('c', 'user', 'a story'), 'b');
    peer.say('response.created', {
      response: { id: 'resp_1', status: 'in_progress', output: [], conversation_id: 'x' },
    });
    peer.say('response.output_item.added', {
      response_id: 'resp_1',
      item: message('d', 'assistant', ''),
    });
    peer.added(message('d', 'assistant', 'Once'), 'c');
    peer.say('rate_limits.updated');
    await heard(client, 'rate_limits.updated');
    peer.cut();
    await phase(client, 'waiting');
    client.say('later');

    const refusing = await server.accept();
    refusing.say('error', {
      error: { type: 'x', code: 'session_not_found', message: 'gone', param: null, event_id: null },
    });
    refusing.socket.close(1008);

    const fresh = await server.accept();
    expect(fresh.query.has('session_id')).toBe(false);
    fresh.created('sess_2');
    expect(await phase(client, 'open')).toMatchObject({ begun: 'rebuilt' });
    expect((await fresh.hear('session.update')).session).toMatchObject({
      instructions: 'Be brief.',
      temperature: 0.5,
    });
    for (const id of ['a', 'b', 'c']) {
      expect((await fresh.hear('conversation.item.create')).item).toMatchObject({ id });
    }
    await fresh.hear('response.create');
    const later = (await fresh.hear('conversation.item.create')).item;
    expect(later).toMatchObject({ content: [{ text: 'later' }] });
    expect(client.position?.sessionId).toBe('sess_2');
  });

  it('is told again to a server that knows nothing of coming back', async () => {
    const { client, peer } = await server.begun();
    peer.added(message('a', 'user', 'hi'));
    await heard(client, 'conversation.item.added');
    peer.cut();
    (await server.accept()).created('sess_other');
    const fresh = await server.accept();
    fresh.created('sess_2');
    expect((await fresh.hear('conversation.item.create')).item).toMatchObject({ id: 'a' });
  });

  it('is the end, where that is wished', async () => {
    const { client, peer } = await server.begun({ rebuild: false });
    peer.cut();
    (await server.accept()).created('sess_other');
    expect((await phase(client, 'ended')).error.code).toBe('session_not_found');
  });
});

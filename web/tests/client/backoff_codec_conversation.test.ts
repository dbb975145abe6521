import { decode, encode } from '@msgpack/msgpack';
import { afterEach, describe, expect, it } from 'vitest';
import {
  closing,
  Conversation,
  delay,
  type Item,
  type Response,
  type ServerEvent,
  textOf,
} from '../../src/client/index.js';
import { msgpack } from '../../src/client/msgpack.js';
import { phase, Scripted } from './scripted_server.js';

describe('waiting', () => {
  it('is drawn from all of a bound that doubles from half a second to twenty', () => {
    const at = (random: number) => ({ base_ms: 500, max_ms: 20_000, random: () => random });
    expect([1, 2, 3, 6, 7, 400].map((n) => delay(n, at(1)))).toEqual([
      500, 1000, 2000, 16_000, 20_000, 20_000,
    ]);
    expect(delay(5, at(0))).toBe(0);
  });
});

describe('close codes', () => {
  it('say whether to come back', () => {
    const back = [1001, 1005, 1006, 1011, 1012, 1013, 1015];
    const stay = [1000, 1003, 1007, 1008, 1009, 4000, 4001, 4002, 4003, 4999];
    expect(back.map((code) => closing(code).recoverable)).toEqual(back.map(() => true));
    expect(stay.map((code) => closing(code).recoverable)).toEqual(stay.map(() => false));
  });
});

describe('MessagePack', () => {
  let server: Scripted | undefined;
  afterEach(() => server?.stop());

  it('is spoken where the server agrees', async () => {
    server = await Scripted.start('realtime.msgpack', (data) => decode(data) as { type: string });
    const client = server.client({ codecs: [msgpack] });
    const peer = await server.accept();
    expect(peer.protocols).toEqual(['realtime.msgpack', 'realtime']);
    peer.socket.send(
      encode({ type: 'session.created', event_id: 'e', session: { id: 's', model: 'm' } }),
    );
    await phase(client, 'open');
    client.say('hé');
    expect(await peer.hear('conversation.item.create')).toMatchObject({
      item: { content: [{ text: 'hé' }] },
    });
  });

  it('is not where the server does not know it', async () => {
    server = await Scripted.start('realtime');
    const { client, peer } = await server.begun({ codecs: [msgpack] });
    client.say('plain');
    await peer.hear('conversation.item.create');
  });
});

describe('a conversation', () => {
  const message = (id: string, text: string): Item => ({
    id,
    type: 'message',
    role: 'assistant',
    content: [{ type: 'output_text', text }],
  });
  const added = (item: Item, previous_item_id: string | null): ServerEvent => ({
    type: 'conversation.item.added',
    event_id: 'e',
    item,
    previous_item_id,
  });
  const ids = (conversation: Conversation) => conversation.items.map((item) => item.id);

  it('keeps the order it is told', () => {
    const conversation = new Conversation();
    conversation.apply(added(message('b', ''), null));
    conversation.apply(added(message('a', ''), null));
    conversation.apply(added(message('d', ''), 'b'));
    conversation.apply(added(message('c', ''), 'b'));
    conversation.apply(added(message('e', ''), 'unknown'));
    expect(ids(conversation)).toEqual(['a', 'b', 'c', 'd', 'e']);
    conversation.apply({ type: 'conversation.item.deleted', event_id: 'e', item_id: 'c' });
    expect(ids(conversation)).toEqual(['a', 'b', 'd', 'e']);
  });

  it('grows with its deltas, and is cut at code points', () => {
    const conversation = new Conversation();
    const inside = { event_id: 'e', response_id: 'r', item_id: 'a', output_index: 0, content_index: 0 };
    const event = added({ ...message('a', ''), content: [] } as Item, null);
    conversation.apply(event);
    for (const delta of ['He', '👩', 'llo']) {
      conversation.apply({ type: 'response.output_text.delta', ...inside, delta });
    }
    const text = () => conversation.items.map(textOf).join();
    expect(text()).toBe('He👩llo');
    expect(event).toMatchObject({ item: { content: [] } });
    conversation.apply({
      type: 'conversation.item.truncated',
      event_id: 'e',
      item_id: 'a',
      content_index: 0,
      text_end: 3,
    });
    expect(text()).toBe('He👩');
  });

  it('begins again with a snapshot, and can be kept as JSON', () => {
    const conversation = new Conversation();
    conversation.apply(added(message('a', 'one'), null));
    const response = { id: 'r', status: 'completed', conversation_id: 'c' } as Response;
    conversation.apply({ type: 'response.created', event_id: 'e', response });
    const kept = new Conversation();
    kept.load(JSON.parse(JSON.stringify(conversation.save())) as ReturnType<Conversation['save']>);
    expect(kept.items).toEqual(conversation.items);
    expect(kept.turns).toEqual(conversation.turns);
    const resume = { session_id: 's', resumed: 'snapshot' as const };
    kept.apply({
      type: 'session.updated',
      event_id: 'e',
      session: { id: 's', model: 'm', resume },
    });
    expect(kept.items).toEqual([]);
  });
});

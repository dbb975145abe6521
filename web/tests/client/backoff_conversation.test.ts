import { describe, expect, it, vi } from 'vitest';
import {
  backoffDelay,
  Conversation,
  type ConversationJson,
  describeCloseCode,
  type Item,
  type RealtimeResponse,
  type ServerEvent,
  textOf,
} from '../../src/client/index.js';

describe('backoff', () => {
  it('draws from the full range below a bound that doubles from 0.5 to 20 s', () => {
    const at = (random: number) => ({ base_ms: 500, max_ms: 20_000, random: () => random });
    expect([1, 2, 3, 6, 7, 400].map((n) => backoffDelay(n, at(1)))).toEqual([
      500, 1000, 2000, 16_000, 20_000, 20_000,
    ]);
    expect(backoffDelay(5, at(0))).toBe(0);
  });
});

describe('close codes', () => {
  it('decide whether the client reconnects', () => {
    const recoverable = [1001, 1005, 1006, 1011, 1012, 1013, 1015];
    const final = [1000, 1003, 1007, 1008, 1009, 4000, 4001, 4002, 4003, 4004, 4999];
    const isRecoverable = (code: number) => describeCloseCode(code).recoverable;
    expect(recoverable.map(isRecoverable)).toEqual(recoverable.map(() => true));
    expect(final.map(isRecoverable)).toEqual(final.map(() => false));
  });

  it('name the device as the cause of a lost connection while it is offline', () => {
    expect(describeCloseCode(1006).reason).toBe('the connection was lost');
    vi.stubGlobal('navigator', { onLine: false });
    expect(describeCloseCode(1006).reason).toBe('this device is offline');
    expect(describeCloseCode(1012).reason).toBe('the server is restarting');
    vi.unstubAllGlobals();
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

  it('keeps the order given by the server', () => {
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

  it('says what changed', () => {
    const conversation = new Conversation();
    const apply = (type: string, fields: object) =>
      conversation.apply({ type, event_id: 'e', ...fields } as unknown as ServerEvent);
    const kinds = (...changes: unknown[]) => changes;
    const position = { response_id: 'r', item_id: 'b', output_index: 0, content_index: 0 };
    expect(
      kinds(
        conversation.apply(added(message('a', 'one'), null)),
        conversation.apply(added(message('c', ''), 'a')),
        conversation.apply(added(message('b', ''), 'a')),
        apply('response.output_text.delta', { ...position, delta: 'Hi' })?.kind,
        apply('response.output_text.done', { ...position, text: 'Hi' }),
        apply('response.output_text.done', { ...position, text: 'Hi!' }),
        apply('conversation.item.deleted', { item_id: 'a' }),
        apply('conversation.item.deleted', { item_id: 'a' }),
        apply('response.created', { response: { id: 'r', status: 'in_progress' } })?.kind,
        apply('session.updated', { session: { resume: { resumed: 'snapshot' } } }),
      ),
    ).toMatchObject([
      { kind: 'item_inserted', item: { id: 'a' }, index: 0 },
      { kind: 'item_inserted', item: { id: 'c' }, index: 1 },
      { kind: 'item_inserted', item: { id: 'b' }, index: 1 },
      'text_appended',
      null,
      { kind: 'item_updated', item: message('b', 'Hi!') },
      { kind: 'item_removed', item: { id: 'a' }, index: 0 },
      null,
      'turn_updated',
      { kind: 'items_replaced' },
    ]);
  });

  it('appends deltas, and truncates at code points', () => {
    const conversation = new Conversation();
    const position = { event_id: 'e', response_id: 'r', item_id: 'a', output_index: 0, content_index: 0 };
    const event = added({ ...message('a', ''), content: [] } as Item, null);
    conversation.apply(event);
    for (const delta of ['He', '👩', 'llo']) {
      conversation.apply({ type: 'response.output_text.delta', ...position, delta });
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

  it('is cleared by a snapshot, and survives a JSON round trip', () => {
    const conversation = new Conversation();
    conversation.apply(added(message('a', 'one'), null));
    const response = { id: 'r', status: 'completed', conversation_id: 'c' } as RealtimeResponse;
    conversation.apply({ type: 'response.created', event_id: 'e', response });
    const loaded = new Conversation();
    loaded.load(JSON.parse(JSON.stringify(conversation)) as ConversationJson);
    expect(loaded.items).toEqual(conversation.items);
    expect(loaded.turns).toEqual(conversation.turns);
    const resume = { session_id: 's', resumed: 'snapshot' as const };
    loaded.apply({
      type: 'session.updated',
      event_id: 'e',
      session: { id: 's', model: 'm', resume },
    });
    expect(loaded.items).toEqual([]);
  });
});

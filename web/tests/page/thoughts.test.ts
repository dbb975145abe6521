/** The model's thoughts, by response. */

import { expect, it } from 'vitest';
import type { RealtimeResponse, ServerEvent } from '../../src/client/index.js';
import { describeThought, Thoughts } from '../../src/page/thoughts.js';

const created = (id: string): ServerEvent => ({
  type: 'response.created',
  event_id: 'e',
  response: { id } as RealtimeResponse,
});
const delta = (response_id: string, text: string): ServerEvent => ({
  type: 'response.reasoning_text.delta',
  event_id: 'e',
  response_id,
  item_id: 'rs',
  delta: text,
});
const done = (response_id: string, text: string): ServerEvent => ({
  type: 'response.reasoning_text.done',
  event_id: 'e',
  response_id,
  item_id: 'rs',
  text,
});
const spoken: ServerEvent = {
  type: 'response.output_text.delta',
  event_id: 'e',
  response_id: 'a',
  item_id: 'm',
  output_index: 0,
  content_index: 0,
  delta: 'It is sunny.',
};

it('grow as they arrive, and are timed from the beginning of the response', () => {
  const thoughts = new Thoughts();
  expect(thoughts.receive(created('a'), 1000)).toBe(false);
  expect(thoughts.receive(delta('a', 'Rome '), 1500)).toBe(true);
  expect(thoughts.receive(delta('a', 'is'), 1600)).toBe(true);
  expect(thoughts.of('a')).toEqual({ text: 'Rome is', ms: null });
  expect(thoughts.receive(done('a', 'Rome is warm.'), 4200)).toBe(true);
  expect(thoughts.receive(spoken, 4300)).toBe(false);
  expect(thoughts.of('a')).toEqual({ text: 'Rome is warm.', ms: 3200 });
  expect(thoughts.of('b')).toBeNull();
});

it('begin again when a snapshot announces the response again', () => {
  const thoughts = new Thoughts();
  thoughts.receive(created('a'), 0);
  thoughts.receive(delta('a', 'Rome'), 1);
  expect(thoughts.receive(created('a'), 2)).toBe(true);
  thoughts.receive(delta('a', 'Ro'), 3);
  expect(thoughts.of('a')?.text).toBe('Ro');
});

it('are stored for the responses that are still in the conversation', () => {
  const thoughts = new Thoughts({ old: { text: 'Hm.', ms: 5 }, gone: { text: 'Oh.', ms: null } });
  thoughts.receive(done('new', 'So.'), 9);
  const stored = thoughts.toJSON(['old', 'without', 'new']);
  expect(stored).toEqual({ old: { text: 'Hm.', ms: 5 }, new: { text: 'So.', ms: null } });
  expect(new Thoughts(stored).of('old')).toEqual({ text: 'Hm.', ms: 5 });
});

it.each([
  [{ text: 'a', ms: null }, false, 'Thinking …'],
  [{ text: 'a', ms: null }, true, 'Thought'],
  [{ text: 'a', ms: 400 }, true, 'Thought for under a second'],
  [{ text: 'a', ms: 3240 }, true, 'Thought for 3 s'],
  [{ text: 'a', ms: 3240 }, false, 'Thought for 3 s'],
] as const)('are described by one line: %o', (thought, hasEnded, expected) => {
  expect(describeThought(thought, hasEnded)).toBe(expected);
});

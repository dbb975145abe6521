/** Latency of turns, on a clock that the test moves. */

import { expect, it } from 'vitest';
import type { ServerEvent } from '../../src/client/index.js';
import type { TurnMetrics } from '../../src/page/storage.js';
import { TurnTiming } from '../../src/page/turn_timing.js';

/** Play a turn of deltas at these times after the request, and return its metrics. `cutAt`: when the connection
 * is lost. */
function play(deltas: number[], { tokens = deltas.length, cutAt = Infinity } = {}): TurnMetrics | null {
  let now = 1000;
  const timing = new TurnTiming(() => now);
  const receive = (event: object): TurnMetrics | null => timing.receive(event as ServerEvent);
  timing.markRequested();
  receive({ type: 'response.created' });
  let isCut = false;
  for (const at of deltas) {
    if (at > cutAt && !isCut) timing.markDisconnected();
    isCut ||= at > cutAt;
    now = 1000 + at;
    receive({ type: 'response.output_text.delta', delta: 'x' });
  }
  const usage = { input_tokens: 10, output_tokens: tokens, input_token_details: { cached_tokens: 0, prefilled_after_commit: 1 } };
  return receive({ type: 'response.done', response: { id: 'resp_1', conversation_id: 'conv_1', usage } });
}

it('measures the time per token of those that came apart', () => {
  expect(play([30, 34, 38, 42])).toMatchObject({ ttft: 30, itl: 4, prefilled: 1, reused: 9 });
  expect(play([30, 34, 38, 42])).not.toHaveProperty('together');
  expect(play([30, 36, 36.1, 42, 42.1], { tokens: 7 })?.itl).toBeCloseTo(12.1 / 6); // most came apart
  expect(play([30])).toMatchObject({ ttft: 30, itl: null });
  expect(play([30])).not.toHaveProperty('together'); // there is only one
});

it.each([
  [[30, 30.1, 30.2, 30.3], 4],
  [[30, 30.1, 30.2, 45, 45.1], 5], // in two parts
  [[30], 12], // in one delta
])('says of tokens that arrived together that they did, case %#', (deltas, tokens) => {
  expect(play(deltas, { tokens })).toMatchObject({ ttft: 30, itl: null, together: true });
});

it('does not count a wait for the connection as one for the model', () => {
  expect(play([3000, 3004], { cutAt: 10 })).toMatchObject({ ttft: null, itl: null });
  const cut = play([30, 34, 3000, 3004], { cutAt: 100 });
  expect(cut).toMatchObject({ ttft: 30, itl: null });
  expect(cut).not.toHaveProperty('together');
});

it('times the next turn after one that was not', () => {
  let now = 0;
  const timing = new TurnTiming(() => now);
  const turn = (): TurnMetrics | null => {
    timing.receive({ type: 'response.created' } as ServerEvent);
    for (const _ of [1, 2, 3]) {
      now += 5;
      timing.receive({ type: 'response.output_text.delta', delta: 'x' } as ServerEvent);
    }
    const usage = { input_tokens: 10, output_tokens: 3, input_token_details: { cached_tokens: 0, prefilled_after_commit: 1 } };
    const response = { id: 'resp_1', conversation_id: 'conv_1', usage };
    return timing.receive({ type: 'response.done', response } as ServerEvent);
  };
  timing.markRequested();
  timing.markDisconnected();
  expect(turn()).toMatchObject({ ttft: null });
  timing.markRequested();
  expect(turn()).toMatchObject({ ttft: 5, itl: 5 });
  expect(turn()).toMatchObject({ ttft: null, itl: null }); // requested by another page
});

/** The figures of a turn in words, in every combination. */

import { expect, it } from 'vitest';
import { formatBytes } from '../../src/page/format.js';
import type { TurnMetrics } from '../../src/page/storage.js';
import { countTokens, describeTimes, describeTokens, describeTurn } from '../../src/page/turn_figures.js';

it.each([
  ['hot', 1, 946, '1 prefilled, 946 reused'],
  ['none', 46, 0, '46 prefilled, 0 reused'],
  [null, 1200, 30, '1,200 prefilled, 30 reused'],
  ['host', 2, 512, '2 prefilled, 512 reused, in part from host memory'],
  ['recomputed', 1, 946, '1 prefilled, 946 ready at the request, after some KV had been lost'],
  ['recomputed', 20, 90, '20 prefilled, 90 ready at the request, after some KV had been lost'],
  ['recomputed', 947, 0, '947 prefilled, after the KV had been lost'],
] as const)('describes the tokens of a turn whose KV was %s: %i and %i', (residency, prefilled, reused, text) => {
  expect(describeTokens({ residency, prefilled, reused })).toBe(text);
});

it.each([
  [{ ttft: 32, itl: 4 }, 'first token 32 ms, then 4 ms per token'],
  [{ ttft: 32, itl: null, together: true }, 'first token 32 ms, the others together'],
  [{ ttft: 32, itl: null }, 'first token 32 ms'],
  [{ ttft: null, itl: null }, 'not timed, because the page was reloaded or not connected'],
])('describes the times of a turn, case %#', (times, text) => {
  expect(describeTimes(times)).toBe(text);
});

it('describes a turn with its time, if it was timed', () => {
  const metrics: TurnMetrics = {
    id: 'resp_1',
    ttft: 12.4,
    itl: 3,
    tokens: 20,
    prefilled: 1,
    reused: 412,
    residency: 'hot',
  };
  expect(describeTurn(metrics)).toBe('First token after 12 ms: 1 prefilled, 412 reused.');
  expect(describeTurn({ ...metrics, ttft: null })).toBe('1 prefilled, 412 reused.');
  expect([0, 1, 2, 1234].map(countTokens)).toEqual(['0 tokens', '1 token', '2 tokens', '1,234 tokens']);
});

it.each([
  [0, '0 B'],
  [999, '999 B'],
  [1000, '1.0 kB'],
  [1250, '1.3 kB'],
  [44_100, '44 kB'],
  [123_456, '123 kB'],
  [999_499, '999 kB'],
  [1_500_000, '1.5 MB'],
])('formats %i bytes', (n, text) => {
  expect(formatBytes(n)).toBe(text);
});

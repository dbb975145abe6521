/** The figures of a turn in words, which agree with each other in every case. Pure.
 *
 * Reused tokens were in the KV cache when the response was requested: from earlier turns, or prefilled while
 * the message was typed. Prefilled tokens were computed after the request. KV that was lost since the last
 * turn was recomputed, and counts as reused as far as that was before the request. */

import { formatCount, formatMs } from './format.js';
import type { TurnMetrics } from './storage.js';

type TokenFigures = Pick<TurnMetrics, 'prefilled' | 'reused' | 'residency'>;

/** Returns how the input of a turn was computed, such as `1 prefilled, 946 reused`. */
export function describeTokens({ prefilled, reused, residency }: TokenFigures): string {
  const [computed, cached] = [`${formatCount(prefilled)} prefilled`, `${formatCount(reused)} reused`];
  if (residency === 'host') return `${computed}, ${cached}, in part from host memory`;
  if (residency === 'recomputed') return `${computed}, ${cached}; lost KV was recomputed`;
  return `${computed}, ${cached}`;
}

/** Describe a turn in one sentence: its time to first token, and how its input was computed. */
export function describeTurn(metrics: TurnMetrics): string {
  const tokens = `${describeTokens(metrics)}.`;
  return metrics.ttft === null ? tokens : `First token after ${formatMs(metrics.ttft)}: ${tokens}`;
}

/** Returns `1 token` or `12 tokens`. */
export function countTokens(n: number): string {
  return `${formatCount(n)} ${n === 1 ? 'token' : 'tokens'}`;
}

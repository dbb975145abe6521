/** The figures of a turn in words, which agree with each other in every case. Pure.
 *
 * Reused tokens were in the KV cache when the response was requested: from earlier turns, or prefilled while
 * the message was typed. Prefilled tokens were computed after the request. KV that was lost since the last
 * turn was computed again, before the request or after it: which tokens that were is not known, so that none
 * are called reused then. */

import { formatCount, formatMs } from './format.js';
import type { TurnMetrics } from './storage.js';

type TokenFigures = Pick<TurnMetrics, 'prefilled' | 'reused' | 'residency'>;
type TimeFigures = Pick<TurnMetrics, 'ttft' | 'itl' | 'together'>;

/** Returns how the input of a turn was computed, such as `1 prefilled, 946 reused`. */
export function describeTokens({ prefilled, reused, residency }: TokenFigures): string {
  const [computed, ready] = [`${formatCount(prefilled)} prefilled`, formatCount(reused)];
  if (residency === 'host') return `${computed}, ${ready} reused, in part from host memory`;
  if (residency !== 'recomputed') return `${computed}, ${ready} reused`;
  return reused === 0
    ? `${computed}, after the KV had been lost`
    : `${computed}, ${ready} ready at the request, after some KV had been lost`;
}

/** Returns the latency of a turn, such as `first token 32 ms, then 4 ms per token`. */
export function describeTimes({ ttft, itl, together }: TimeFigures): string {
  if (ttft === null) return 'not timed, because the page was reloaded or not connected';
  const first = `first token ${formatMs(ttft)}`;
  if (together) return `${first}, the others together`;
  return itl === null ? first : `${first}, then ${formatMs(itl)} per token`;
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

/** How long to wait before the next attempt: exponential, with full jitter, so that a thousand
 * clients of a server that restarts do not come back at the same moment. */

export interface Backoff {
  /** Bound of the first wait, milliseconds. */
  base_ms: number;
  /** Bound of any wait, milliseconds. */
  max_ms: number;
  /** A number from [0, 1). */
  random: () => number;
}

export const defaultBackoff: Backoff = { base_ms: 500, max_ms: 20_000, random: Math.random };

/** Milliseconds before attempt `n`; the first repetition is 1. */
export function delay(attempt: number, { base_ms, max_ms, random }: Backoff): number {
  const bound_ms = Math.min(max_ms, base_ms * 2 ** Math.min(attempt - 1, 30));
  return random() * bound_ms;
}

/** Exponential backoff with full jitter between connection attempts, so that a thousand clients of a
 * restarting server do not reconnect at the same moment. */

export interface BackoffOptions {
  /** Upper bound of the first delay, in milliseconds. */
  base_ms: number;
  /** Upper bound of every delay, in milliseconds. */
  max_ms: number;
  /** Returns a number in [0, 1). */
  random: () => number;
}

export const defaultBackoff: BackoffOptions = { base_ms: 500, max_ms: 20_000, random: Math.random };

/** Returns the delay before retry `attempt` (1 for the first retry), in milliseconds. */
export function backoffDelay(attempt: number, { base_ms, max_ms, random }: BackoffOptions): number {
  const bound_ms = Math.min(max_ms, base_ms * 2 ** Math.min(attempt - 1, 30));
  return random() * bound_ms;
}

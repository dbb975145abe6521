/** Client-side latency of a turn: from the request to its first and last tokens. */

import type { RealtimeResponse, ServerEvent } from '../client/index.js';
import type { TurnMetrics } from './storage.js';

/** Tokens that follow each other within this time, in milliseconds, arrived together. */
const TOGETHER_MS = 1;

export class TurnTiming {
  readonly #now: () => number;
  /** When the request was sent; null if the page was not open, or not connected all the time since then. */
  #requestedAt: number | null = null;
  /** Times of the first and of the last token; null before the first. */
  #firstAt: number | null = null;
  #lastAt = 0;
  /** Numbers of deltas, and of those that came apart from the one before. */
  #deltas = 0;
  #arrivals = 0;
  /** Whether the connection was lost after the first token: what was missed then comes all at once. */
  #isCut = false;

  /** `now`: returns a time in milliseconds. */
  constructor(now = (): number => performance.now()) {
    this.#now = now;
  }

  /** A request has been sent on an open connection. */
  markRequested(): void {
    this.#requestedAt = this.#now();
  }

  /** The connection is lost: from now on a wait is one for the network, not for the model. */
  markDisconnected(): void {
    if (this.#firstAt === null) this.#requestedAt = null;
    this.#isCut = true;
  }

  /** Process an event. Returns the metrics of a turn when its response has ended. */
  receive(event: ServerEvent): TurnMetrics | null {
    switch (event.type) {
      case 'response.created':
        this.#firstAt = null;
        return null;
      case 'response.output_text.delta':
      case 'response.function_call_arguments.delta':
        this.#receiveTokens(this.#now());
        return null;
      case 'response.done':
        return event.response.conversation_id === null ? null : this.#takeMetrics(event.response);
      default:
        return null;
    }
  }

  #receiveTokens(at: number): void {
    if (this.#firstAt === null) {
      this.#firstAt = at;
      this.#deltas = this.#arrivals = 0;
      this.#isCut = false;
    }
    this.#deltas += 1;
    if (this.#arrivals === 0 || at - this.#lastAt >= TOGETHER_MS) this.#arrivals += 1;
    this.#lastAt = at;
  }

  #takeMetrics({ id, usage }: RealtimeResponse): TurnMetrics | null {
    const [requestedAt, firstAt] = [this.#requestedAt, this.#firstAt];
    this.#requestedAt = this.#firstAt = null;
    const tokens = usage?.output_tokens ?? 0;
    if (!usage || !tokens) return null;
    const prefilled = usage.input_token_details.prefilled_after_commit;
    return {
      id,
      ttft: requestedAt === null || firstAt === null ? null : firstAt - requestedAt,
      ...(requestedAt === null || firstAt === null ? { itl: null } : this.#perToken(firstAt, tokens)),
      tokens,
      prefilled,
      reused: usage.input_tokens - prefilled,
      residency: usage.residency ?? null,
    };
  }

  /** Returns the time per token after the first, if most deltas came apart; otherwise it would be one of the
   * page, or of the network. */
  #perToken(firstAt: number, tokens: number): Pick<TurnMetrics, 'itl' | 'together'> {
    if (tokens < 2 || this.#isCut) return { itl: null };
    if (this.#arrivals < 2 || 2 * this.#arrivals < this.#deltas) return { itl: null, together: true };
    return { itl: (this.#lastAt - firstAt) / (tokens - 1) };
  }
}

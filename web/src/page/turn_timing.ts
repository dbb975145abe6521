/** Client-side latency of a turn: from the request to its first and last tokens. */

import type { RealtimeResponse, ServerEvent } from '../client/index.js';
import type { TurnMetrics } from './storage.js';

export class TurnTiming {
  /** Times in milliseconds; 0 if the event has not happened, or the page was not open. */
  #requestedAt = 0;
  #firstTokenAt = 0;
  #lastTokenAt = 0;

  markRequested(): void {
    this.#requestedAt = performance.now();
  }

  /** Process an event. Returns the metrics of a turn when its response has ended. */
  receive(event: ServerEvent): TurnMetrics | null {
    switch (event.type) {
      case 'response.created':
        this.#firstTokenAt = 0;
        return null;
      case 'response.output_text.delta':
      case 'response.function_call_arguments.delta':
        this.#lastTokenAt = performance.now();
        this.#firstTokenAt ||= this.#lastTokenAt;
        return null;
      case 'response.done':
        return event.response.conversation_id === null ? null : this.#takeMetrics(event.response);
      default:
        return null;
    }
  }

  #takeMetrics({ id, usage }: RealtimeResponse): TurnMetrics | null {
    const requestedAt = this.#requestedAt;
    const firstTokenAt = this.#firstTokenAt;
    const generation_ms = this.#lastTokenAt - firstTokenAt;
    this.#requestedAt = this.#firstTokenAt = 0;
    const tokens = usage?.output_tokens ?? 0;
    if (!usage || !tokens) return null;
    const isTimed = requestedAt > 0 && firstTokenAt > 0;
    const reused = usage.input_token_details.cached_tokens;
    return {
      id,
      ttft: isTimed ? firstTokenAt - requestedAt : null,
      itl: isTimed && generation_ms > 0 && tokens > 1 ? generation_ms / (tokens - 1) : null,
      tokens,
      prefilled: usage.input_tokens - reused,
      reused,
      residency: usage.residency ?? null,
    };
  }
}

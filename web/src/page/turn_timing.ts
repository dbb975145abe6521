/** What an answer costs, as it is seen from here: asked for, its first token, its last. */

import type { Response, ServerEvent } from '../client/index.js';
import type { TurnMetrics } from './storage.js';

export class TurnClock {
  /** Milliseconds; 0: it has not happened, or nobody was here to see it. */
  #asked = 0;
  #first = 0;
  #last = 0;

  ask(): void {
    this.#asked = performance.now();
  }

  /** What the answer has cost, when it has ended. */
  hear(event: ServerEvent): TurnMetrics | null {
    switch (event.type) {
      case 'response.created':
        this.#first = 0;
        return null;
      case 'response.output_text.delta':
      case 'response.function_call_arguments.delta':
        this.#last = performance.now();
        this.#first ||= this.#last;
        return null;
      case 'response.done':
        return event.response.conversation_id === null ? null : this.#end(event.response);
      default:
        return null;
    }
  }

  #end({ id, usage }: Response): TurnMetrics | null {
    const [asked, first, last] = [this.#asked, this.#first, this.#last];
    this.#asked = this.#first = 0;
    const tokens = usage?.output_tokens ?? 0;
    if (!usage || !tokens) return null;
    const timed = asked > 0 && first > 0;
    const reused = usage.input_token_details.cached_tokens;
    return {
      id,
      ttft: timed ? first - asked : null,
      itl: timed && last > first && tokens > 1 ? (last - first) / (tokens - 1) : null,
      tokens,
      prefilled: usage.input_tokens - reused,
      reused,
      residency: usage.residency ?? null,
    };
  }
}

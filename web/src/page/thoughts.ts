/** What the model thought before its responses: kept as it arrives, and shown folded. */

import type { ServerEvent } from '../client/index.js';
import { BoundedText } from './bounded_text.js';
import { h } from './dom.js';

/** The reasoning of one response; stored with the conversation. */
export interface Thought {
  text: string;
  /** How long it took, in milliseconds; null while it is written, or if that was not measured. */
  ms: number | null;
}

export class Thoughts {
  readonly #byResponse: Map<string, Thought>;
  /** When the response in progress was created, by its id. */
  #created: { id: string; at: number } | null = null;

  constructor(stored: Record<string, Thought> = {}) {
    this.#byResponse = new Map(Object.entries(stored));
  }

  of(responseId: string): Thought | null {
    return this.#byResponse.get(responseId) ?? null;
  }

  /** Process an event. Returns whether a thought has changed. `now`: in milliseconds. */
  receive(event: ServerEvent, now: number): boolean {
    switch (event.type) {
      case 'response.created':
        this.#created = { id: event.response.id, at: now };
        return this.#byResponse.delete(event.response.id); // it is sent again after a snapshot
      case 'response.reasoning_text.delta': {
        const text = (this.of(event.response_id)?.text ?? '') + event.delta;
        this.#byResponse.set(event.response_id, { text, ms: null });
        return true;
      }
      case 'response.reasoning_text.done': {
        const { response_id, text } = event;
        const ms = this.#created?.id === response_id ? now - this.#created.at : null;
        this.#byResponse.set(response_id, { text, ms });
        return true;
      }
      default:
        return false;
    }
  }

  /** Returns the thoughts of these responses, to be stored. */
  toJSON(responseIds: readonly string[]): Record<string, Thought> {
    const kept = responseIds.map((id) => [id, this.of(id)] as const);
    return Object.fromEntries(kept.filter((entry): entry is [string, Thought] => entry[1] !== null));
  }
}

/** Returns the line that stands for a folded thought. `hasEnded`: whether its response has. */
export function describeThought({ ms }: Thought, hasEnded: boolean): string {
  if (ms === null) return hasEnded ? 'Thought' : 'Thinking …';
  return ms < 1000 ? 'Thought for under a second' : `Thought for ${Math.round(ms / 1000)} s`;
}

/** A thought, folded until the reader opens it. */
export class ThoughtView {
  readonly #summary = h('summary', {});
  readonly #body = h('p', {});
  readonly #text = new BoundedText(this.#body);
  readonly element = h('details', { class: 'thought' }, this.#summary, this.#body);

  draw(thought: Thought, hasEnded: boolean): void {
    const summary = describeThought(thought, hasEnded);
    if (this.#summary.textContent !== summary) this.#summary.textContent = summary;
    this.#text.show(thought.text);
  }
}

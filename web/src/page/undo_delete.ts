/** What was deleted can be had back for a while; then the server forgets it too. */

import { endSession } from './api.js';
import { forget, keep, type Kept, type Listed, load } from './storage.js';

const UNDO_MS = 10_000;
/** How soon to look again whether somebody still thinks about it. */
const HELD_MS = 1000;

export interface Watching {
  /** Whether somebody is about to undo it: that may take longer. */
  held(id: string): boolean;
  /** It cannot be had back any more. */
  gone(): void;
}

export class Bin {
  readonly #watching: Watching;
  readonly #thrown = new Map<string, { kept: Kept; timer: ReturnType<typeof setTimeout> }>();

  constructor(watching: Watching) {
    this.#watching = watching;
    addEventListener('pagehide', () => {
      for (const id of [...this.#thrown.keys()]) this.#empty(id);
    });
  }

  /** What can be had back. */
  get listed(): Listed[] {
    return [...this.#thrown.values()].map(({ kept }) => kept);
  }

  add(id: string): void {
    const kept = load(id);
    forget(id);
    if (kept) this.#thrown.set(id, { kept, timer: this.#later(id, UNDO_MS) });
  }

  /** As if it had not been deleted. */
  restore(id: string): void {
    const thrown = this.#thrown.get(id);
    if (!thrown) return;
    clearTimeout(thrown.timer);
    this.#thrown.delete(id);
    keep(thrown.kept);
  }

  #later(id: string, ms: number): ReturnType<typeof setTimeout> {
    return setTimeout(() => {
      const thrown = this.#thrown.get(id);
      if (thrown && this.#watching.held(id)) thrown.timer = this.#later(id, HELD_MS);
      else this.#empty(id);
    }, ms);
  }

  #empty(id: string): void {
    const thrown = this.#thrown.get(id);
    if (!thrown) return;
    clearTimeout(thrown.timer);
    this.#thrown.delete(id);
    const session = thrown.kept.position?.sessionId;
    // A server that cannot be reached forgets it by itself, when nobody has come back.
    if (session !== undefined) void endSession(session).catch(() => undefined);
    this.#watching.gone();
  }
}

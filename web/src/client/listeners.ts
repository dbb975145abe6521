/** Event listeners by type. */

import type { Unsubscribe } from './observable.js';

export class Listeners<Event extends { type: string }> {
  readonly #listeners = new Map<string, Set<(event: Event) => void>>();

  /** Register `listener` for one event type, or for all with `'*'`. */
  add(type: string, listener: (event: Event) => void): Unsubscribe {
    const registered = this.#listeners.get(type) ?? new Set();
    this.#listeners.set(type, registered);
    registered.add(listener);
    return () => registered.delete(listener);
  }

  emit(event: Event): void {
    for (const type of [event.type, '*']) {
      for (const listener of [...(this.#listeners.get(type) ?? [])]) listener(event);
    }
  }
}

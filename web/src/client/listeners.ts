/** Event listeners by type. */

import type { Unsubscribe } from './observable.js';

export class Listeners<E extends { type: string }> {
  readonly #listeners = new Map<string, Set<(event: E) => void>>();

  /** Register `listener` for one event type, or for all with `'*'`. */
  add(type: string, listener: (event: E) => void): Unsubscribe {
    const registered = this.#listeners.get(type) ?? new Set();
    this.#listeners.set(type, registered);
    registered.add(listener);
    return () => registered.delete(listener);
  }

  emit(event: E): void {
    for (const type of [event.type, '*']) {
      for (const listener of [...(this.#listeners.get(type) ?? [])]) listener(event);
    }
  }
}

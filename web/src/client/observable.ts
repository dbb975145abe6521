/** A value that can be watched, and events that can be listened to. */

export type Unsubscribe = () => void;

export interface Observable<T> {
  readonly value: T;
  /** Called with every later value. */
  subscribe(listener: (value: T) => void): Unsubscribe;
}

/** The writing end of an Observable. */
export class Subject<T> implements Observable<T> {
  readonly #listeners = new Set<(value: T) => void>();
  #value: T;

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    this.#value = value;
    for (const listener of [...this.#listeners]) listener(value);
  }

  subscribe(listener: (value: T) => void): Unsubscribe {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Observable values. */

export type Unsubscribe = () => void;

export interface Observable<T> {
  readonly value: T;
  /** Call `listener` with every later value. */
  subscribe(listener: (value: T) => void): Unsubscribe;
}

/** Writable side of an Observable. */
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

/** Ids of a client's own, and events as the wire wants them. */

import type { ClientEvent } from './events.js';
import type { Named } from './outbox.js';

export class Names {
  readonly #client = randomName();
  #given = 0;

  fresh(kind: 'event' | 'item'): string {
    this.#given += 1;
    return `${kind}_${this.#client}_${this.#given}`;
  }

  /** The event with an id; items have ids too, sessions a type. */
  complete(event: ClientEvent, event_id = event.event_id ?? this.fresh('event')): Named {
    switch (event.type) {
      case 'conversation.item.create':
        return { ...event, event_id, item: { ...event.item, id: event.item.id ?? this.fresh('item') } };
      case 'session.update':
        return { ...event, event_id, session: typed(event.session) };
      default:
        return { ...event, event_id };
    }
  }
}

/** The server wants to know what kind of session it is. */
function typed<T extends object>(session: T): T {
  return { type: 'realtime', ...session };
}

function randomName(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

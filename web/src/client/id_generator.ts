/** Client-generated ids, added to events before they are sent. */

import type { ClientEvent } from './events.js';
import type { IdentifiedEvent } from './outbox.js';

export class IdGenerator {
  readonly #clientId = randomClientId();
  #count = 0;

  next(kind: 'event' | 'item'): string {
    this.#count += 1;
    return `${kind}_${this.#clientId}_${this.#count}`;
  }

  /** Returns the event with an event id, an item id for new items, and the session type for updates. */
  withIds(event: ClientEvent, event_id = event.event_id ?? this.next('event')): IdentifiedEvent {
    switch (event.type) {
      case 'conversation.item.create':
        return { ...event, event_id, item: { ...event.item, id: event.item.id ?? this.next('item') } };
      case 'session.update':
        return { ...event, event_id, session: withSessionType(event.session) };
      default:
        return { ...event, event_id };
    }
  }
}

/** The wire requires `session.type` in every update. */
function withSessionType<T extends object>(session: T): T {
  return { type: 'realtime', ...session };
}

function randomClientId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

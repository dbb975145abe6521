/** Rehydration: the events that rebuild a lost session on the server from the client's copy. Pure. */

import type { Conversation } from './conversation.js';
import type { ClientEvent, Item, NewItem, Session, SessionSettings } from './events.js';

/** Returns the part of a session that a client can set. */
export function settingsOf(session: Session): SessionSettings {
  const { id: _id, model: _model, resume: _resume, ...settings } = session;
  return settings;
}

/** Returns the events that recreate `conversation`, except items whose creation is still `pending`.
 * An unfinished response is removed from `conversation` and requested again. */
export function rehydrate(conversation: Conversation, pending: readonly ClientEvent[]): ClientEvent[] {
  const unfinished = conversation.running;
  if (unfinished) conversation.forget(unfinished);
  const pendingIds = new Set(pending.map(itemIdOf));
  const events: ClientEvent[] = conversation.items
    .filter((item) => !pendingIds.has(item.id))
    .map((item) => ({ type: 'conversation.item.create', item: withoutStatus(item) }));
  if (unfinished) events.push({ type: 'response.create' });
  return events;
}

function itemIdOf(event: ClientEvent): string | undefined {
  return event.type === 'conversation.item.create' ? event.item.id : undefined;
}

/** Returns an item without the fields that only the server sets. */
function withoutStatus(item: Item): NewItem {
  const { status: _, ...rest } = item;
  return rest;
}

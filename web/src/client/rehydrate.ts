/** Rehydration: the events that recreate a lost session on the server from the client's copy. */

import type { Conversation } from './conversation.js';
import type { ClientEvent, Item, NewItem, Session, SessionSettings } from './events.js';

/** Returns the part of a session that a client can set. */
export function settingsOf(session: Session): SessionSettings {
  const { id: _id, model: _model, resume: _resume, ...settings } = session;
  return settings;
}

/** Returns the events that recreate `conversation`, except items whose creation is still `pending`. */
export function recreateItems(
  conversation: Conversation,
  pending: readonly ClientEvent[],
): ClientEvent[] {
  const pendingIds = new Set(pending.map(createdItemId));
  return conversation.items
    .filter((item) => !pendingIds.has(item.id))
    .map((item) => ({ type: 'conversation.item.create', item: withoutStatus(item) }));
}

function createdItemId(event: ClientEvent): string | undefined {
  return event.type === 'conversation.item.create' ? event.item.id : undefined;
}

/** Returns an item without the fields that only the server sets. */
function withoutStatus(item: Item): NewItem {
  const { status: _, ...rest } = item;
  return rest;
}

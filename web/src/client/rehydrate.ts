/** Rehydration: the events that recreate a lost session on the server from the client's copy. */

import type { Conversation } from './conversation.js';
import type { ClientEvent, Item, NewItem, Session, SessionSettings } from './events.js';

/** Returns the part of a session that a client can set. */
export function settingsOf(session: Session): SessionSettings {
  const { id: _id, model: _model, resume: _resume, ...settings } = session;
  return settings;
}

/** Prepare the rehydration of `conversation`: remove an unfinished response, which is requested again.
 * Returns the events that recreate the session, except items whose creation is still `pending`. */
export function prepareRehydration(
  conversation: Conversation,
  pending: readonly ClientEvent[],
): ClientEvent[] {
  const unfinished = conversation.activeTurn;
  if (unfinished) conversation.removeTurn(unfinished);
  const pendingIds = new Set(pending.map(createdItemId));
  const events: ClientEvent[] = conversation.items
    .filter((item) => !pendingIds.has(item.id))
    .map((item) => ({ type: 'conversation.item.create', item: withoutStatus(item) }));
  if (unfinished) events.push({ type: 'response.create' });
  return events;
}

function createdItemId(event: ClientEvent): string | undefined {
  return event.type === 'conversation.item.create' ? event.item.id : undefined;
}

/** Returns an item without the fields that only the server sets. */
function withoutStatus(item: Item): NewItem {
  const { status: _, ...rest } = item;
  return rest;
}

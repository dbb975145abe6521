"""Rehydration: the events that recreate a lost session on the server from the client's copy."""

from collections.abc import Collection

import msgspec

from continuo.realtime.client.conversation import Conversation
from continuo.realtime.client.events import JsonObject
from continuo.realtime.client.new_id import new_id

_SET_BY_SERVER = ("id", "model", "object", "resume", "expires_at")


def settings_of(session: JsonObject) -> JsonObject:
    """Return the part of a session that a client can set."""
    return {name: value for name, value in session.items() if name not in _SET_BY_SERVER}


def recreate_items(conversation: Conversation, pending: Collection[JsonObject]) -> list[JsonObject]:
    """Build the events that create the items of `conversation`, except those whose creation is
    still pending."""
    created = [event for event in pending if event["type"] == "conversation.item.create"]
    pending_ids = {event["item"]["id"] for event in created}
    events: list[JsonObject] = []
    for item in conversation.items:
        if item.id not in pending_ids:
            fields: JsonObject = msgspec.to_builtins(item)
            fields.pop("status", None)
            event = {"type": "conversation.item.create", "item": fields}
            events.append(event | {"event_id": new_id("event")})
    return events

"""Codec of the event log in the store. Pure.

Stored events are small: they contain only the ids of items, because the items are in the entries of
the session, and no settings, which are in its state. Events without items and settings are stored
as they are. All are arrays: a new field goes last, and has a default."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from continuo.engine import Sampling
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.event_log.replay import LoggedEvent
from continuo.realtime.persistence.session_codec import first_item_id, to_stored_sampling
from continuo.realtime.protocol.events import (
    ItemAdded,
    ItemDeleted,
    ItemTruncated,
    ResponseEnded,
    ResponseStarted,
    Rewind,
    SessionConfigured,
    TextAppended,
    TextCleared,
    TextCommitted,
)
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Response, ResponseError, ResponseStatus, Usage
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.store.codec import decode, encode


class _StoredResponse(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A response, as contained in its start and end events."""

    id: str
    is_out_of_band: bool
    """Whether the response belongs to no conversation."""
    status: ResponseStatus
    metadata: dict[str, str] | None
    max_output_tokens: int | None
    sampling: Sampling
    extras: str
    reason: Any
    error: ResponseError | None
    usage: Usage | None
    items: tuple[Item, ...]
    """Items of an out-of-band response; empty for others."""
    item_ids: tuple[str, ...]
    """Ids of the items in the conversation. An empty id stands for the first item, whose id is
    derived (`first_item_id`)."""

    @classmethod
    def of(cls, response: Response) -> Self:
        is_out_of_band, settings = response.conversation is None, response.settings
        first_id = first_item_id(response.id)
        item_ids = tuple("" if item.id == first_id else item.id for item in response.items)
        return cls(
            id=response.id,
            is_out_of_band=is_out_of_band,
            status=response.status,
            metadata=response.metadata,
            max_output_tokens=settings.max_output_tokens,
            sampling=to_stored_sampling(settings.sampling),
            extras=settings.extras,
            reason=response.reason,
            error=response.error,
            usage=response.usage,
            items=response.items if is_out_of_band else (),
            item_ids=() if is_out_of_band else item_ids,
        )

    def to_response(self, items: Mapping[str, Item], conversation_id: str) -> Response:
        """Raises KeyError if an item is not in `items`."""
        first_id = first_item_id(self.id)
        return Response(
            id=self.id,
            conversation=None if self.is_out_of_band else conversation_id,
            settings=GenerationSettings(
                max_output_tokens=self.max_output_tokens,
                sampling=self.sampling,
                extras=self.extras,
            ),
            metadata=self.metadata,
            status=self.status,
            reason=self.reason,
            error=self.error,
            items=self.items or tuple(items[item_id or first_id] for item_id in self.item_ids),
            usage=self.usage,
        )


class _StoredConfigured(msgspec.Struct, frozen=True, array_like=True, tag="configured"):
    rewind: Rewind | None


class _StoredItemAdded(msgspec.Struct, frozen=True, array_like=True, tag="item_added"):
    item_id: str
    previous_item_id: str | None
    rewind: Rewind | None


class _StoredResponseStarted(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    response: _StoredResponse


class _StoredResponseEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    response: _StoredResponse
    response_number: int


_EventStoredAsIs = ItemDeleted | ItemTruncated | TextAppended | TextCleared | TextCommitted
_StoredEvent = (
    _StoredConfigured
    | _StoredItemAdded
    | _StoredResponseStarted
    | _StoredResponseEnded
    | _EventStoredAsIs
)
_event_decoder = msgspec.msgpack.Decoder(_StoredEvent)


def encode_event(event: LoggedEvent) -> bytes:
    return encode(_to_stored(event))


def _to_stored(logged: LoggedEvent) -> _StoredEvent:
    match logged.event:
        case SessionConfigured(rewind=rewind):
            return _StoredConfigured(rewind)
        case ItemAdded(item=item, previous_item_id=previous, rewind=rewind):
            return _StoredItemAdded(item.id, previous, rewind)
        case ResponseStarted(response=response):
            return _StoredResponseStarted(_StoredResponse.of(response))
        case ResponseEnded(response=response):
            assert logged.response_number is not None, "a response that ends has started"
            return _StoredResponseEnded(_StoredResponse.of(response), logged.response_number)
        case event if isinstance(event, _EventStoredAsIs):
            return event
        case _:
            raise AssertionError(f"{type(logged.event).__name__} is not logged")


def decode_events(
    bodies: Sequence[bytes],
    settings: GenerationSettings,
    conversation: Conversation,
    conversation_id: str,
) -> list[LoggedEvent]:
    """Decode events, from the newest back to the first that cannot be replayed exactly, which is
    left out with all older ones. Returns the events oldest first. `settings`, `conversation`: those
    of the session now, to which the events refer. `conversation_id`: set in the decoded
    responses."""
    items = {item.id: item for item in conversation.items_with_reasoning()}
    logged_events: list[LoggedEvent] = []
    is_configured = False
    for body in reversed(bodies):
        stored = decode(_event_decoder, body)
        if isinstance(stored, _StoredConfigured):
            if is_configured:
                break  # earlier settings are not in the store any more
            is_configured = True
        try:
            logged_events.append(_to_logged(stored, settings, items, conversation_id))
        except KeyError:
            break  # an item is not in the conversation any more
    logged_events.reverse()
    return logged_events


def _to_logged(
    stored: _StoredEvent,
    settings: GenerationSettings,
    items: Mapping[str, Item],
    conversation_id: str,
) -> LoggedEvent:
    """Raises KeyError if an item of the event is not in `items`."""
    match stored:
        case _StoredConfigured(rewind=rewind):
            return LoggedEvent(SessionConfigured(settings, rewind))
        case _StoredItemAdded(item_id=item_id, previous_item_id=previous, rewind=rewind):
            return LoggedEvent(ItemAdded(items[item_id], previous, rewind))
        case _StoredResponseStarted(response=response):
            return LoggedEvent(ResponseStarted(response.to_response(items, conversation_id)))
        case _StoredResponseEnded(response=response, response_number=number):
            ended = ResponseEnded(response.to_response(items, conversation_id))
            return LoggedEvent(ended, number)
        case _:
            return LoggedEvent(stored)

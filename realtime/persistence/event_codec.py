"""Codec of the event log in the store. Pure.

Stored events are small: they contain only the ids of items, because the items are in the entries of
the session, and no settings, which are in its state."""

import re
from collections.abc import Sequence
from typing import Any, assert_never, get_args

import msgspec

from continuo.engine import Sampling
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.event_log.event_log import LoggedEvent
from continuo.realtime.persistence.session_codec import first_item_id
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
from continuo.realtime.protocol.response import (
    KVResidency,
    Response,
    ResponseError,
    ResponseStatus,
    Usage,
)
from continuo.realtime.protocol.settings import GenerationSettings

_PackedId = bytes
"""A compact id: one byte for its kind (an index of `_ID_KINDS`), then its hex digits as bytes. An
id of another form, as clients choose, has the kind `_VERBATIM`, then its text."""
_GENERATED_ID = re.compile(r"(item|resp|call)_([0-9a-f]{20})")
_ID_KINDS = ("item", "resp", "call")
_VERBATIM = len(_ID_KINDS)
_STATUSES: tuple[ResponseStatus, ...] = get_args(ResponseStatus)
"""Statuses of a response. The store holds their indices, so new ones are appended at the end."""


def _pack_id(id: str) -> _PackedId:
    generated = _GENERATED_ID.fullmatch(id)
    if generated is None:
        return bytes((_VERBATIM,)) + id.encode("utf-8", "surrogatepass")
    return bytes((_ID_KINDS.index(generated[1]),)) + bytes.fromhex(generated[2])


def _unpack_id(packed: _PackedId) -> str:
    kind, rest = packed[0], packed[1:]
    if kind == _VERBATIM:
        return rest.decode("utf-8", "surrogatepass")
    return f"{_ID_KINDS[kind]}_{rest.hex()}"


class _PackedUsage(msgspec.Struct, frozen=True, array_like=True):
    """Usage, with times in microseconds."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    queued_us: int
    prefill_us: int
    model_us: int
    residency: KVResidency

    @classmethod
    def pack(cls, usage: Usage) -> "_PackedUsage":
        queued_us, prefill_us, model_us = (
            round(time * 1e6) for time in (usage.queued_s, usage.prefill_s, usage.model_s)
        )
        return cls(
            usage.input_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            queued_us,
            prefill_us,
            model_us,
            usage.residency,
        )

    def unpack(self) -> Usage:
        return Usage(
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            queued_s=self.queued_us / 1e6,
            prefill_s=self.prefill_us / 1e6,
            model_s=self.model_us / 1e6,
            residency=self.residency,
        )


class _PackedResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response, as contained in its start and end events. For items of the conversation, only ids
    are stored."""

    id: _PackedId
    is_out_of_band: bool
    """Whether the response belongs to no conversation."""
    status: int
    """Index in _STATUSES."""
    metadata: dict[str, str] | None
    max_output_tokens: int | None
    sampling: dict[str, Any]
    extras: str
    reason: Any
    error: ResponseError | None
    usage: _PackedUsage | None
    items: tuple[Item, ...]
    """Items of an out-of-band response; empty for others."""
    item_ids: tuple[_PackedId, ...]
    """Ids of the items in the conversation. An empty id stands for the first item, whose id is
    derived (`first_item_id`)."""


class _Configured(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    rewind: Rewind | None = None


class _ItemAdded(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    item: _PackedId
    previous: _PackedId | None
    rewind: Rewind | None = None


class _ItemDeleted(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    item: _PackedId
    rewind: Rewind | None = None


class _ItemTruncated(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    item: _PackedId
    content_index: int
    audio_end_ms: int | None
    text_end: int | None
    rewind: Rewind | None = None


class _TextAppended(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    length: int


class _TextCleared(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    pass


class _TextCommitted(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    item: _PackedId
    previous: _PackedId | None


class _ResponseStarted(msgspec.Struct, frozen=True, array_like=True, tag="S"):
    response: _PackedResponse


class _ResponseEnded(msgspec.Struct, frozen=True, array_like=True, tag="E"):
    response: _PackedResponse
    response_number: int


_PackedEvent = (
    _Configured
    | _ItemAdded
    | _ItemDeleted
    | _ItemTruncated
    | _TextAppended
    | _TextCleared
    | _TextCommitted
    | _ResponseStarted
    | _ResponseEnded
)
_event_decoder = msgspec.msgpack.Decoder(_PackedEvent)


def encode_event(event: LoggedEvent) -> bytes:
    return msgspec.msgpack.encode(_pack_event(event))


def _pack_event(logged: LoggedEvent) -> _PackedEvent:
    match logged.event:
        case SessionConfigured(rewind=rewind):
            return _Configured(rewind)
        case ItemAdded(item=item, previous_item_id=previous, rewind=rewind):
            return _ItemAdded(_pack_id(item.id), _pack_optional_id(previous), rewind)
        case ItemDeleted(item_id=item, rewind=rewind):
            return _ItemDeleted(_pack_id(item), rewind)
        case ItemTruncated(item_id=item, content_index=index) as cut:
            return _ItemTruncated(_pack_id(item), index, cut.audio_end_ms, cut.text_end, cut.rewind)
        case TextAppended(length=length):
            return _TextAppended(length)
        case TextCleared():
            return _TextCleared()
        case TextCommitted(item_id=item, previous_item_id=previous):
            return _TextCommitted(_pack_id(item), _pack_optional_id(previous))
        case ResponseStarted(answer=response):
            return _ResponseStarted(_pack_response(response))
        case ResponseEnded(answer=response):
            assert logged.response_number is not None, "a response that ends has started"
            return _ResponseEnded(_pack_response(response), logged.response_number)
        case _:
            raise AssertionError(f"{type(logged.event).__name__} is not logged")


def _pack_optional_id(item: str | None) -> _PackedId | None:
    return None if item is None else _pack_id(item)


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
    items = {item.id: item for item in conversation.items()}
    logged_events: list[LoggedEvent] = []
    is_configured = False
    for body in reversed(bodies):
        try:
            event = _event_decoder.decode(body)
        except msgspec.ValidationError:
            break  # written by another version of the gateway
        if isinstance(event, _Configured):
            if is_configured:
                break  # earlier settings are not in the store any more
            is_configured = True
        try:
            logged_events.append(_unpack_event(event, settings, items, conversation_id))
        except KeyError:
            break
    logged_events.reverse()
    return logged_events


def _unpack_event(
    event: _PackedEvent, settings: GenerationSettings, items: dict[str, Item], conversation_id: str
) -> LoggedEvent:
    """Unpack an event. Raises KeyError if one of its items is not in the conversation any more."""
    match event:
        case _Configured(rewind=rewind):
            return LoggedEvent(SessionConfigured(settings, rewind))
        case _ItemAdded(item=item, previous=previous, rewind=rewind):
            return LoggedEvent(
                ItemAdded(items[_unpack_id(item)], _unpack_optional_id(previous), rewind)
            )
        case _ItemDeleted(item=item, rewind=rewind):
            return LoggedEvent(ItemDeleted(_unpack_id(item), rewind))
        case _ItemTruncated(item=item, content_index=index, audio_end_ms=ms, text_end=end) as cut:
            return LoggedEvent(ItemTruncated(_unpack_id(item), index, ms, end, cut.rewind))
        case _TextAppended(length=length):
            return LoggedEvent(TextAppended(length))
        case _TextCleared():
            return LoggedEvent(TextCleared())
        case _TextCommitted(item=item, previous=previous):
            return LoggedEvent(TextCommitted(_unpack_id(item), _unpack_optional_id(previous)))
        case _ResponseStarted(response=packed):
            return LoggedEvent(ResponseStarted(_unpack_response(packed, items, conversation_id)))
        case _ResponseEnded(response=packed, response_number=number):
            return LoggedEvent(
                ResponseEnded(_unpack_response(packed, items, conversation_id)), number
            )
        case _:
            assert_never(event)


def _unpack_optional_id(item: _PackedId | None) -> str | None:
    return None if item is None else _unpack_id(item)


def _pack_response(response: Response) -> _PackedResponse:
    is_out_of_band, first = response.conversation is None, first_item_id(response.id)
    defaults = msgspec.structs.asdict(Sampling())
    sampling = msgspec.structs.asdict(response.settings.sampling)
    return _PackedResponse(
        id=_pack_id(response.id),
        is_out_of_band=is_out_of_band,
        status=_STATUSES.index(response.status),
        metadata=response.metadata,
        max_output_tokens=response.settings.max_output_tokens,
        sampling={key: value for key, value in sampling.items() if value != defaults[key]},
        extras=response.settings.extras,
        reason=response.reason,
        error=response.error,
        usage=None if response.usage is None else _PackedUsage.pack(response.usage),
        items=response.items if is_out_of_band else (),
        item_ids=()
        if is_out_of_band
        else tuple(b"" if i.id == first else _pack_id(i.id) for i in response.items),
    )


def _unpack_response(
    packed: _PackedResponse, items: dict[str, Item], conversation_id: str
) -> Response:
    id = _unpack_id(packed.id)
    return Response(
        id=id,
        conversation=None if packed.is_out_of_band else conversation_id,
        settings=GenerationSettings(
            max_output_tokens=packed.max_output_tokens,
            sampling=msgspec.convert(packed.sampling, Sampling),
            extras=packed.extras,
        ),
        metadata=packed.metadata,
        status=_STATUSES[packed.status],
        reason=packed.reason,
        error=packed.error,
        items=packed.items
        or tuple(
            items[_unpack_id(item) if item else first_item_id(id)] for item in packed.item_ids
        ),
        usage=None if packed.usage is None else packed.usage.unpack(),
    )

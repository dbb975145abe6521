"""What a session can tell again, in the store, and back: records, small, because what they name is
in the log. Pure."""

import re
from collections.abc import Sequence
from typing import Any, assert_never, get_args

import msgspec

from continuo.engine import Sampling
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.event_log.event_log import Record
from continuo.realtime.persistence.session_codec import first_of
from continuo.realtime.protocol.events import (
    AnswerEnded,
    AnswerStarted,
    Configured,
    ItemAdded,
    ItemDropped,
    ItemTruncated,
    Rewind,
    TextAppended,
    TextCleared,
    TextCommitted,
)
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Answer, AnswerError, AnswerStatus, Residency, Usage
from continuo.realtime.protocol.settings import Settings

_Name = bytes
"""An id: what it is of, one byte, and its digits; where it is a client's, how it is spelt."""
_OURS = re.compile(r"(item|resp|call)_([0-9a-f]{20})")
_KINDS = ("item", "resp", "call")
_SPELT = len(_KINDS)
_STATUSES: tuple[AnswerStatus, ...] = get_args(AnswerStatus)
"""New ones go to the end: their numbers are in the store."""


def _short(name: str) -> _Name:
    ours = _OURS.fullmatch(name)
    if ours is None:
        return bytes((_SPELT,)) + name.encode("utf-8", "surrogatepass")
    return bytes((_KINDS.index(ours[1]),)) + bytes.fromhex(ours[2])


def _long(name: _Name) -> str:
    kind, rest = name[0], name[1:]
    if kind == _SPELT:
        return rest.decode("utf-8", "surrogatepass")
    return f"{_KINDS[kind]}_{rest.hex()}"


class _Usage(msgspec.Struct, frozen=True, array_like=True):
    """Times in microseconds."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    queued_us: int
    prefill_us: int
    model_us: int
    residency: Residency

    @classmethod
    def of(cls, usage: Usage) -> "_Usage":
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

    def usage(self) -> Usage:
        return Usage(
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            queued_s=self.queued_us / 1e6,
            prefill_s=self.prefill_us / 1e6,
            model_s=self.model_us / 1e6,
            residency=self.residency,
        )


class _Shape(msgspec.Struct, frozen=True, array_like=True):
    """An answer, as the wire says it, small."""

    id: _Name
    apart: bool
    """Whether it is of no conversation."""
    status: int
    """Of _STATUSES."""
    metadata: dict[str, str] | None
    max_output_tokens: int | None
    sampling: dict[str, Any]
    extras: str
    reason: Any
    error: AnswerError | None
    usage: _Usage | None
    items: tuple[Item, ...]
    named: tuple[_Name, ...]
    """Empty: the name of an answer's first item."""


class _Configured(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    rewind: Rewind | None = None


class _Added(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    item: _Name
    previous: _Name | None
    rewind: Rewind | None = None


class _Gone(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    item: _Name
    rewind: Rewind | None = None


class _Cut(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    item: _Name
    content_index: int
    audio_end_ms: int | None
    text_end: int | None
    rewind: Rewind | None = None


class _Heard(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    length: int


class _Cleared(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    pass


class _Committed(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    item: _Name
    previous: _Name | None


class _Started(msgspec.Struct, frozen=True, array_like=True, tag="S"):
    answer: _Shape


class _Ended(msgspec.Struct, frozen=True, array_like=True, tag="E"):
    answer: _Shape
    began: int


_Event = _Configured | _Added | _Gone | _Cut | _Heard | _Cleared | _Committed | _Started | _Ended
_event = msgspec.msgpack.Decoder(_Event)


def event_of(record: Record) -> bytes:
    return msgspec.msgpack.encode(_event_of(record))


def _event_of(record: Record) -> _Event:
    match record.tell:
        case Configured(rewind=rewind):
            return _Configured(rewind)
        case ItemAdded(item=item, previous=previous, rewind=rewind):
            return _Added(_short(item.id), _before(previous), rewind)
        case ItemDropped(item_id=item, rewind=rewind):
            return _Gone(_short(item), rewind)
        case ItemTruncated(item_id=item, content_index=index) as tell:
            return _Cut(_short(item), index, tell.audio_end_ms, tell.text_end, tell.rewind)
        case TextAppended(length=length):
            return _Heard(length)
        case TextCleared():
            return _Cleared()
        case TextCommitted(item_id=item, previous=previous):
            return _Committed(_short(item), _before(previous))
        case AnswerStarted(answer=answer):
            return _Started(_shape(answer))
        case AnswerEnded(answer=answer):
            assert record.answer is not None, "it has begun"
            return _Ended(_shape(answer), record.answer)
        case _:
            raise AssertionError(f"{type(record.tell).__name__} is no record")


def _before(item: str | None) -> _Name | None:
    return None if item is None else _short(item)


def records_of(
    bodies: Sequence[bytes], settings: Settings, conversation: Conversation, name: str
) -> list[Record]:
    """The last ones: as many as can be told exactly. `name`: the conversation's id."""
    items = {item.id: item for item in conversation.items()}
    records: list[Record] = []
    configured = False
    for body in reversed(bodies):
        try:
            event = _event.decode(body)
        except msgspec.ValidationError:
            break  # written by another version
        if isinstance(event, _Configured):
            if configured:
                break  # these settings are not known any more
            configured = True
        try:
            records.append(_record(event, settings, items, name))
        except KeyError:
            break
    records.reverse()
    return records


def _record(event: _Event, settings: Settings, items: dict[str, Item], name: str) -> Record:
    """Raises KeyError for an item that is not there any more."""
    match event:
        case _Configured(rewind=rewind):
            return Record(Configured(settings, rewind))
        case _Added(item=item, previous=previous, rewind=rewind):
            return Record(ItemAdded(items[_long(item)], _after(previous), rewind))
        case _Gone(item=item, rewind=rewind):
            return Record(ItemDropped(_long(item), rewind))
        case _Cut(item=item, content_index=index, audio_end_ms=ms, text_end=end) as cut:
            return Record(ItemTruncated(_long(item), index, ms, end, cut.rewind))
        case _Heard(length=length):
            return Record(TextAppended(length))
        case _Cleared():
            return Record(TextCleared())
        case _Committed(item=item, previous=previous):
            return Record(TextCommitted(_long(item), _after(previous)))
        case _Started(answer=shape):
            return Record(AnswerStarted(_answer(shape, items, name)))
        case _Ended(answer=shape, began=began):
            return Record(AnswerEnded(_answer(shape, items, name)), began)
        case _:
            assert_never(event)


def _after(item: _Name | None) -> str | None:
    return None if item is None else _long(item)


def _shape(answer: Answer) -> _Shape:
    apart, first = answer.conversation is None, first_of(answer.id)
    plain = msgspec.structs.asdict(Sampling())
    sampling = msgspec.structs.asdict(answer.settings.sampling)
    return _Shape(
        id=_short(answer.id),
        apart=apart,
        status=_STATUSES.index(answer.status),
        metadata=answer.metadata,
        max_output_tokens=answer.settings.max_output_tokens,
        sampling={key: value for key, value in sampling.items() if value != plain[key]},
        extras=answer.settings.extras,
        reason=answer.reason,
        error=answer.error,
        usage=None if answer.usage is None else _Usage.of(answer.usage),
        items=answer.items if apart else (),
        named=() if apart else tuple(b"" if i.id == first else _short(i.id) for i in answer.items),
    )


def _answer(shape: _Shape, items: dict[str, Item], name: str) -> Answer:
    id = _long(shape.id)
    return Answer(
        id=id,
        conversation=None if shape.apart else name,
        settings=Settings(
            max_output_tokens=shape.max_output_tokens,
            sampling=msgspec.convert(shape.sampling, Sampling),
            extras=shape.extras,
        ),
        metadata=shape.metadata,
        status=_STATUSES[shape.status],
        reason=shape.reason,
        error=shape.error,
        items=shape.items
        or tuple(items[_long(item) if item else first_of(id)] for item in shape.named),
        usage=None if shape.usage is None else shape.usage.usage(),
    )

"""What a session is in the store, and back. Pure.

    log     head │ dropped items │ spans … │ words of the text buffer …     ids, and a body as JSON
    state   settings, and the number of the first event
    events  records: what they name is in the log

A place for an answer that is being made is a span without ids.
"""

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

import msgspec

from engine import ChatTemplate, Sampling
from realtime.protocol import core
from realtime.session.conversation import Conversation
from realtime.session.layout import Span
from realtime.session.rendering import message_of
from realtime.session.transcript import Record
from realtime.store import Begun, Entry

# ---------------------------------------------------------------- the log


class Place(msgspec.Struct, frozen=True):
    """Of an answer that is being made."""

    answer: str


class Dropped(msgspec.Struct, frozen=True):
    items: tuple[core.Item, ...]


class Words(msgspec.Struct, frozen=True, eq=False):
    """A piece of the text buffer."""

    text: str


Piece = Span | Place | Dropped | Words


class _Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    items: tuple[core.Item, ...] = ()
    answer: str | None = None
    sampled: tuple[int, int] | None = None
    """Of the ids: from, to."""
    open: bool = False
    dropped: bool = False
    words: str | None = None


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(_Body)


def pieces_of(conversation: Conversation, draft: Sequence[Words]) -> tuple[Piece, ...]:
    dropped = (Dropped(conversation.dropped),) if conversation.dropped else ()
    spans = (_place(span) if span.open else span for span in conversation.spans)
    return (conversation.head, *dropped, *spans, *draft)


def _place(span: Span) -> Place:
    assert span.answer is not None, "an open span is an answer's"
    return Place(span.answer)


def entry_of(piece: Piece) -> Entry:
    match piece:
        case Span(ids=ids, items=items, answer=answer):
            body = _Body(items=items, answer=answer, sampled=_within(piece))
            return Entry(_encode(body), ids)
        case Place(answer=answer):
            return Entry(_encode(_Body(answer=answer, open=True)))
        case Dropped(items=items):
            return Entry(_encode(_Body(items=items, dropped=True)))
        case Words(text=text):
            return Entry(_encode(_Body(words=text)))
        case _:
            assert_never(piece)


def _within(span: Span) -> tuple[int, int] | None:
    """Where the sampled ids stand, between the header and the ending."""
    if span.sampled is None:
        return None
    size = len(span.sampled)
    for start in range(len(span.ids) - size + 1):
        if span.ids[start : start + size] == span.sampled:
            return start, start + size
    raise AssertionError("sampled ids are in the span")


class Log(msgspec.Struct, frozen=True):
    pieces: tuple[Piece, ...]
    conversation: Conversation
    words: tuple[Words, ...]


def log_of(entries: Iterable[Entry], template: ChatTemplate, settings: core.Settings) -> Log:
    pieces = tuple(_piece(entry) for entry in entries)
    if not pieces:
        return Log((), Conversation.start(template, settings), ())
    head, *rest = pieces
    assert isinstance(head, Span), "a log begins with the head"
    spans: list[Span] = []
    dropped: tuple[core.Item, ...] = ()
    words: list[Words] = []
    for piece in rest:
        match piece:
            case Span():
                spans.append(piece)
            case Place(answer=answer):
                spans.append(Span(answer=answer, open=True))
            case Dropped(items=items):
                dropped = items
            case Words():
                words.append(piece)
            case _:
                assert_never(piece)
    conversation = Conversation(
        template, settings.instructions, settings.tools, head, tuple(spans), dropped
    )
    return Log(pieces, conversation, tuple(words))


def _piece(entry: Entry) -> Piece:
    body = _body.decode(entry.body)
    if body.words is not None:
        return Words(body.words)
    if body.dropped:
        return Dropped(body.items)
    if body.open:
        assert body.answer is not None, "somebody's place"
        return Place(body.answer)
    sampled = None if body.sampled is None else entry.ids[slice(*body.sampled)]
    message = message_of(body.items) if body.items else None
    return Span(body.items, entry.ids, body.answer, sampled, message=message)


# ---------------------------------------------------------------- state, answers


class State(msgspec.Struct, frozen=True, kw_only=True):
    settings: core.Settings
    first: int = 0
    """Number of the record that is event 0."""


_state = msgspec.json.Decoder(State)


def pack_state(state: State) -> bytes:
    return _encode(state)


def unpack_state(data: bytes) -> State:
    return _state.decode(data)


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer is made from, besides the conversation before its place."""

    settings: core.Settings | None = None
    """None: the session's."""
    metadata: dict[str, str] | None = None
    context: tuple[core.Item, ...] | None = None
    number: int = 0
    """Of the record that began it."""


_asked = msgspec.json.Decoder(Asked)


def pack_asked(asked: Asked) -> bytes:
    return _encode(asked)


def asked_of(begun: Begun) -> Asked:
    return _asked.decode(begun.body)


# ---------------------------------------------------------------- records


class _Shape(msgspec.Struct, frozen=True, array_like=True):
    """An answer, as the wire says it, small."""

    id: str
    conversation: str | None
    status: core.AnswerStatus
    metadata: dict[str, str] | None
    max_output_tokens: int | None
    sampling: dict[str, Any]
    extras: str
    reason: Any
    error: core.AnswerError | None
    usage: core.Usage | None
    items: tuple[core.Item, ...]
    named: tuple[str, ...]


class _Configured(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    rewind: core.Rewind | None = None


class _Added(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    item: str
    previous: str | None
    rewind: core.Rewind | None = None


class _Gone(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    item: str
    rewind: core.Rewind | None = None


class _Cut(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    item: str
    content_index: int
    audio_end_ms: int | None
    text_end: int | None
    rewind: core.Rewind | None = None


class _Heard(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    length: int


class _Cleared(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    pass


class _Committed(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    item: str
    previous: str | None


class _Started(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    answer: _Shape


class _Ended(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    answer: _Shape
    began: int


_Event = _Configured | _Added | _Gone | _Cut | _Heard | _Cleared | _Committed | _Started | _Ended
_event = msgspec.msgpack.Decoder(_Event)


def event_of(record: Record) -> bytes:
    return msgspec.msgpack.encode(_event_of(record))


def _event_of(record: Record) -> _Event:
    match record.tell:
        case core.Configured(rewind=rewind):
            return _Configured(rewind)
        case core.ItemAdded(item=item, previous=previous, rewind=rewind):
            return _Added(item.id, previous, rewind)
        case core.ItemDropped(item_id=item, rewind=rewind):
            return _Gone(item, rewind)
        case core.ItemTruncated(item_id=item, content_index=index) as tell:
            return _Cut(item, index, tell.audio_end_ms, tell.text_end, tell.rewind)
        case core.TextAppended(length=length):
            return _Heard(length)
        case core.TextCleared():
            return _Cleared()
        case core.TextCommitted(item_id=item, previous=previous):
            return _Committed(item, previous)
        case core.AnswerStarted(answer=answer):
            return _Started(_shape(answer))
        case core.AnswerEnded(answer=answer):
            assert record.answer is not None, "it has begun"
            return _Ended(_shape(answer), record.answer)
        case _:
            raise AssertionError(f"{type(record.tell).__name__} is no record")


def records_of(
    bodies: Sequence[bytes], settings: core.Settings, conversation: Conversation
) -> list[Record]:
    """The last ones: as many as can be told exactly."""
    items = {item.id: item for item in conversation.items()}
    records: list[Record] = []
    configured = False
    for body in reversed(bodies):
        event = _event.decode(body)
        if isinstance(event, _Configured):
            if configured:
                break  # these settings are not known any more
            configured = True
        try:
            records.append(_record(event, settings, items))
        except KeyError:
            break
    records.reverse()
    return records


def _record(event: _Event, settings: core.Settings, items: dict[str, core.Item]) -> Record:
    """Raises KeyError for an item that is not there any more."""
    match event:
        case _Configured(rewind=rewind):
            return Record(core.Configured(settings, rewind))
        case _Added(item=item, previous=previous, rewind=rewind):
            return Record(core.ItemAdded(items[item], previous, rewind))
        case _Gone(item=item, rewind=rewind):
            return Record(core.ItemDropped(item, rewind))
        case _Cut(item=item, content_index=index, audio_end_ms=ms, text_end=end) as cut:
            return Record(core.ItemTruncated(item, index, ms, end, cut.rewind))
        case _Heard(length=length):
            return Record(core.TextAppended(length))
        case _Cleared():
            return Record(core.TextCleared())
        case _Committed(item=item, previous=previous):
            return Record(core.TextCommitted(item, previous))
        case _Started(answer=shape):
            return Record(core.AnswerStarted(_answer(shape, items)))
        case _Ended(answer=shape, began=began):
            return Record(core.AnswerEnded(_answer(shape, items)), began)
        case _:
            assert_never(event)


def _shape(answer: core.Answer) -> _Shape:
    apart = answer.conversation is None
    plain = msgspec.structs.asdict(Sampling())
    sampling = msgspec.structs.asdict(answer.settings.sampling)
    return _Shape(
        id=answer.id,
        conversation=answer.conversation,
        status=answer.status,
        metadata=answer.metadata,
        max_output_tokens=answer.settings.max_output_tokens,
        sampling={key: value for key, value in sampling.items() if value != plain[key]},
        extras=answer.settings.extras,
        reason=answer.reason,
        error=answer.error,
        usage=answer.usage,
        items=answer.items if apart else (),
        named=() if apart else tuple(item.id for item in answer.items),
    )


def _answer(shape: _Shape, items: dict[str, core.Item]) -> core.Answer:
    return core.Answer(
        id=shape.id,
        conversation=shape.conversation,
        settings=core.Settings(
            max_output_tokens=shape.max_output_tokens,
            sampling=msgspec.convert(shape.sampling, Sampling),
            extras=shape.extras,
        ),
        metadata=shape.metadata,
        status=shape.status,
        reason=shape.reason,
        error=shape.error,
        items=shape.items or tuple(items[name] for name in shape.named),
        usage=shape.usage,
    )

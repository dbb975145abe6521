"""What a session is in the store, and back. Pure.

    log     head │ dropped items │ spans … │ words of the text buffer …     ids, and a body as JSON
    state   settings, the number of the first event, and which model the ids are of

A place for an answer that is being made is a span without ids.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from continuo.engine import ChatTemplate
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import message_of
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.ids import within
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.store import Begun, Entry

# ---------------------------------------------------------------- the log


class Place(msgspec.Struct, frozen=True):
    """Of an answer that is being made."""

    answer: str


class Dropped(msgspec.Struct, frozen=True):
    items: tuple[Item, ...]


class Words(msgspec.Struct, frozen=True, eq=False):
    """A piece of the text buffer."""

    text: str


Piece = Span | Place | Dropped | Words


class _Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    items: tuple[Item, ...] = ()
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
            body = _Body(items=_unnamed(items, answer), answer=answer, sampled=_within(piece))
            return Entry(_encode(body), ids)
        case Place(answer=answer):
            return Entry(_encode(_Body(answer=answer, open=True)))
        case Dropped(items=items):
            return Entry(_encode(_Body(items=items, dropped=True)))
        case Words(text=text):
            return Entry(_encode(_Body(words=text)))
        case _:
            assert_never(piece)


def _unnamed(items: tuple[Item, ...], answer: str | None) -> tuple[Item, ...]:
    """The id of an answer's first item follows from the answer's own: it is left out."""
    if answer is None or not items or items[0].id != first_of(answer):
        return items
    return (msgspec.structs.replace(items[0], id=""), *items[1:])


def _named(items: tuple[Item, ...], answer: str | None) -> tuple[Item, ...]:
    if answer is None or not items or items[0].id:
        return items
    return (msgspec.structs.replace(items[0], id=first_of(answer)), *items[1:])


def first_of(answer: str) -> str:
    """The id of an answer's first item."""
    return within(answer)("item")


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


def log_of(entries: Iterable[Entry], template: ChatTemplate, settings: Settings) -> Log:
    pieces = tuple(_piece(entry) for entry in entries)
    if not pieces:
        return Log((), Conversation.start(template, settings), ())
    head, *rest = pieces
    assert isinstance(head, Span), "a log begins with the head"
    spans: list[Span] = []
    dropped: tuple[Item, ...] = ()
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
    items = _named(body.items, body.answer)
    message = message_of(items) if items else None
    return Span(items, entry.ids, body.answer, sampled, message=message)


# ---------------------------------------------------------------- state, answers


class State(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    first: int = 0
    """Number of the record that is event 0."""
    model: str = ""
    """Digest of the model, tokenizer and template that the log's ids are of; empty: not known."""


def is_of(model: str, digest: str) -> bool:
    """Whether stored ids are of the model with this digest. Those of an unknown one are not."""
    return model != "" and model == digest


_state = msgspec.json.Decoder(State)


def pack_state(state: State) -> bytes:
    return _encode(state)


def unpack_state(data: bytes) -> State:
    return _state.decode(data)


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer is made from, besides the conversation before its place."""

    settings: Settings | None = None
    """None: the session's."""
    metadata: dict[str, str] | None = None
    context: tuple[Item, ...] | None = None
    number: int = 0
    """Of the record that began it."""
    model: str = ""
    """Digest of the model that draws it."""


_asked = msgspec.json.Decoder(Asked)


def pack_asked(asked: Asked) -> bytes:
    return _encode(asked)


def asked_of(begun: Begun) -> Asked:
    return _asked.decode(begun.body)

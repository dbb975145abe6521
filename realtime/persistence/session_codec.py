"""Codec of a stored session. Pure.

    log     head │ out-of-window items │ spans … │ draft pieces …     entries: token ids, JSON body
    state   settings, the offset of the first event, and the model that the token ids belong to

The placeholder of a response that is being generated is an entry without token ids.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from continuo.engine import ChatTemplate
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import render_message
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.ids import deterministic_id_factory
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.store import Entry, ResponseCheckpoint

# ---------------------------------------------------------------- the log


class ResponsePlaceholder(msgspec.Struct, frozen=True):
    """Entry that marks the position of a response that is being generated."""

    response_id: str


class OutOfWindowItems(msgspec.Struct, frozen=True):
    items: tuple[Item, ...]


class DraftPiece(msgspec.Struct, frozen=True, eq=False):
    """Text that one change added to the text buffer. The buffer is the concatenation of its
    pieces."""

    text: str


ConversationEntry = Span | ResponsePlaceholder | OutOfWindowItems | DraftPiece


class _Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """JSON body of an entry. `answer`: id of the response. `open`: the entry is a placeholder.
    `dropped`: its items are out of window. `words`: text of a draft piece."""

    items: tuple[Item, ...] = ()
    answer: str | None = None
    sampled: tuple[int, int] | None = None
    """Start and end of the sampled ids within the ids of the entry; None if it has no sampled
    ids."""
    open: bool = False
    dropped: bool = False
    words: str | None = None


_encode = msgspec.json.Encoder().encode
_body_decoder = msgspec.json.Decoder(_Body)


def to_entries(
    conversation: Conversation, draft: Sequence[DraftPiece]
) -> tuple[ConversationEntry, ...]:
    out_of_window = (
        (OutOfWindowItems(conversation.out_of_window),) if conversation.out_of_window else ()
    )
    spans = (_make_placeholder(span) if span.is_open else span for span in conversation.spans)
    return (conversation.head, *out_of_window, *spans, *draft)


def _make_placeholder(span: Span) -> ResponsePlaceholder:
    assert span.response_id is not None, "an open span belongs to a response"
    return ResponsePlaceholder(span.response_id)


def encode_entry(entry: ConversationEntry) -> Entry:
    match entry:
        case Span(ids=ids, items=items, response_id=response_id):
            body = _Body(
                items=_omit_derived_id(items, response_id),
                answer=response_id,
                sampled=_sampled_range(entry),
            )
            return Entry(_encode(body), ids)
        case ResponsePlaceholder(response_id=response_id):
            return Entry(_encode(_Body(answer=response_id, open=True)))
        case OutOfWindowItems(items=items):
            return Entry(_encode(_Body(items=items, dropped=True)))
        case DraftPiece(text=text):
            return Entry(_encode(_Body(words=text)))
        case _:
            assert_never(entry)


def _omit_derived_id(items: tuple[Item, ...], response_id: str | None) -> tuple[Item, ...]:
    """Leave out the id of a response's first item, which is derived from the response's id."""
    if response_id is None or not items or items[0].id != first_item_id(response_id):
        return items
    return (msgspec.structs.replace(items[0], id=""), *items[1:])


def _restore_derived_id(items: tuple[Item, ...], response_id: str | None) -> tuple[Item, ...]:
    if response_id is None or not items or items[0].id:
        return items
    return (msgspec.structs.replace(items[0], id=first_item_id(response_id)), *items[1:])


def first_item_id(response_id: str) -> str:
    """Derive the id of a response's first item."""
    return deterministic_id_factory(response_id)("item")


def _sampled_range(span: Span) -> tuple[int, int] | None:
    """Return start and end of the sampled ids within the ids of a span; None for a rendered
    span."""
    if span.sampled_ids is None:
        return None
    size = len(span.sampled_ids)
    for start in range(len(span.ids) - size + 1):
        if span.ids[start : start + size] == span.sampled_ids:
            return start, start + size
    raise AssertionError("the sampled ids are in the span")


class DecodedConversation(msgspec.Struct, frozen=True):
    entries: tuple[ConversationEntry, ...]
    conversation: Conversation
    draft: tuple[DraftPiece, ...]


def decode_conversation(
    entries: Iterable[Entry], template: ChatTemplate, settings: GenerationSettings
) -> DecodedConversation:
    pieces = tuple(_decode_entry(entry) for entry in entries)
    if not pieces:
        return DecodedConversation((), Conversation.start(template, settings), ())
    head, *rest = pieces
    assert isinstance(head, Span), "the first entry is the head"
    spans: list[Span] = []
    out_of_window: tuple[Item, ...] = ()
    draft: list[DraftPiece] = []
    for piece in rest:
        match piece:
            case Span():
                spans.append(piece)
            case ResponsePlaceholder(response_id=response_id):
                spans.append(Span(response_id=response_id, is_open=True))
            case OutOfWindowItems(items=items):
                out_of_window = items
            case DraftPiece():
                draft.append(piece)
            case _:
                assert_never(piece)
    conversation = Conversation(
        template, settings.instructions, settings.tools, head, tuple(spans), out_of_window
    )
    return DecodedConversation(pieces, conversation, tuple(draft))


def _decode_entry(entry: Entry) -> ConversationEntry:
    body = _body_decoder.decode(entry.body)
    if body.words is not None:
        return DraftPiece(body.words)
    if body.dropped:
        return OutOfWindowItems(body.items)
    if body.open:
        assert body.answer is not None, "a placeholder names its response"
        return ResponsePlaceholder(body.answer)
    sampled = None if body.sampled is None else entry.ids[slice(*body.sampled)]
    items = _restore_derived_id(body.items, body.answer)
    message = render_message(items) if items else None
    return Span(items, entry.ids, body.answer, sampled, message=message)


# ---------------------------------------------------------------- state, responses


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    settings: GenerationSettings
    first: int = 0
    """Offset, in the event log, of the event that has number 0 in the store."""
    model: str = ""
    """Digest of the model, tokenizer and chat template that the token ids belong to; empty if
    unknown."""


def is_same_model(model: str, digest: str) -> bool:
    """Whether the token ids stored under `model` belong to the model with this digest. False if
    `model` is empty, which means unknown."""
    return model != "" and model == digest


_state_decoder = msgspec.json.Decoder(StoredState)


def encode_state(state: StoredState) -> bytes:
    return _encode(state)


def decode_state(data: bytes) -> StoredState:
    return _state_decoder.decode(data)


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Inputs of a response, besides the conversation items that precede it."""

    settings: GenerationSettings | None = None
    """Settings of the response. None: the settings of the session."""
    metadata: dict[str, str] | None = None
    context: tuple[Item, ...] | None = None
    """Input items that replace the conversation. None: the conversation is the input."""
    number: int = 0
    """Offset of the event that started the response."""
    model: str = ""
    """Digest of the model that generates the response."""


_request_decoder = msgspec.json.Decoder(StoredRequest)


def encode_request(request: StoredRequest) -> bytes:
    return _encode(request)


def decode_request(checkpoint: ResponseCheckpoint) -> StoredRequest:
    return _request_decoder.decode(checkpoint.body)

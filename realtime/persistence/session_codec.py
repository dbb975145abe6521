"""Codec of a stored session. Pure.

    log     head │ out-of-window items │ spans … │ draft pieces …     entries, with their token ids
    state   settings, the offset of the first event, and the model that the token ids belong to

Each value is a struct of this module in the encoding of `store.codec`. The structs of entries are
arrays: a new field goes last, and has a default.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from continuo.engine import ChatTemplate, EffortSetting, Sampling
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import render_message
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.ids import deterministic_id
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.store import ResponseCheckpoint
from continuo.realtime.store.codec import decode, encode

# ---------------------------------------------------------------- the log


class ResponsePlaceholder(msgspec.Struct, frozen=True, array_like=True, tag="placeholder"):
    """Entry that marks the position of a response that is being generated."""

    response_id: str


class OutOfWindowItems(msgspec.Struct, frozen=True, array_like=True, tag="out_of_window"):
    items: tuple[Item, ...]


class DraftPiece(msgspec.Struct, frozen=True, eq=False, array_like=True, tag="draft"):
    """Text that one change added to the text buffer. The buffer is the concatenation of its
    pieces."""

    text: str


ConversationEntry = Span | ResponsePlaceholder | OutOfWindowItems | DraftPiece


class _StoredSpan(msgspec.Struct, frozen=True, array_like=True, tag="span"):
    items: tuple[Item, ...]
    """The first item of a response without its id, which is derived (`first_item_id`)."""
    ids: tuple[int, ...]
    response_id: str | None
    sampled: tuple[int, int] | None
    """Start and end of the sampled ids within `ids`; None if there are none."""
    effort: EffortSetting | None = None
    """Effort of the reasoning; None stands for `default`."""


_entry_decoder = msgspec.msgpack.Decoder(
    _StoredSpan | ResponsePlaceholder | OutOfWindowItems | DraftPiece
)


def to_entries(
    conversation: Conversation, draft: Sequence[DraftPiece]
) -> tuple[ConversationEntry, ...]:
    out_of_window = (
        (OutOfWindowItems(conversation.out_of_window),) if conversation.out_of_window else ()
    )
    spans: Iterable[ConversationEntry] = conversation.spans
    if conversation.has_open_response:
        spans = (_make_placeholder(span) if span.is_open else span for span in conversation.spans)
    return (conversation.head, *out_of_window, *spans, *draft)


def _make_placeholder(span: Span) -> ResponsePlaceholder:
    assert span.response_id is not None, "an open span belongs to a response"
    return ResponsePlaceholder(span.response_id)


def encode_entry(entry: ConversationEntry) -> bytes:
    return encode(_to_stored_span(entry) if isinstance(entry, Span) else entry)


def _to_stored_span(span: Span) -> _StoredSpan:
    items = span.items
    if items and span.response_id is not None and items[0].id == first_item_id(span.response_id):
        items = (msgspec.structs.replace(items[0], id=""), *items[1:])
    effort = None if span.effort == "default" else span.effort
    return _StoredSpan(items, span.ids, span.response_id, _sampled_range(span), effort)


def _to_span(stored: _StoredSpan) -> Span:
    items = stored.items
    if items and not items[0].id:
        assert stored.response_id is not None, "the id is derived from that of a response"
        items = (
            msgspec.structs.replace(items[0], id=first_item_id(stored.response_id)),
            *items[1:],
        )
    return Span(
        items,
        stored.ids,
        stored.response_id,
        sampled_ids=None if stored.sampled is None else stored.ids[slice(*stored.sampled)],
        effort=stored.effort or "default",
        message=render_message(items) if items else None,
    )


def first_item_id(response_id: str) -> str:
    """Derive the id of a response's first item."""
    return deterministic_id(response_id, "item", 1)


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
    entries: Iterable[bytes], template: ChatTemplate, settings: GenerationSettings
) -> DecodedConversation:
    pieces = tuple(decode_entry(entry) for entry in entries)
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
        template.for_effort(settings.reasoning.effort),
        settings.instructions,
        settings.tools,
        head,
        tuple(spans),
        out_of_window,
    )
    return DecodedConversation(pieces, conversation, tuple(draft))


def decode_entry(entry: bytes) -> ConversationEntry:
    stored = decode(_entry_decoder, entry)
    return _to_span(stored) if isinstance(stored, _StoredSpan) else stored


# ---------------------------------------------------------------- state, responses


class _StoredSampling(Sampling, frozen=True, omit_defaults=True):
    """Sampling parameters that are encoded without those that have their defaults."""


def to_stored_sampling(sampling: Sampling) -> Sampling:
    defaults = msgspec.structs.asdict(Sampling())
    fields = msgspec.structs.asdict(sampling).items()
    return _StoredSampling(**{name: value for name, value in fields if value != defaults[name]})


def _to_stored_settings(settings: GenerationSettings) -> GenerationSettings:
    sampling = to_stored_sampling(settings.sampling)
    return msgspec.structs.replace(settings, sampling=sampling)


class StoredState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    settings: GenerationSettings
    first: int = 0
    """Offset, in the event log, of the event that has number 0 in the store."""
    model: str = ""
    """Digest of the model, tokenizer and chat template that the token ids belong to."""


_state_decoder = msgspec.msgpack.Decoder(StoredState)


def encode_state(state: StoredState) -> bytes:
    return encode(msgspec.structs.replace(state, settings=_to_stored_settings(state.settings)))


def decode_state(data: bytes) -> StoredState:
    return decode(_state_decoder, data)


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Inputs of a response, besides the conversation items that precede it."""

    settings: GenerationSettings | None = None
    """Settings of the response. None: the settings of the session."""
    metadata: dict[str, str] | None = None
    context: tuple[Item, ...] | None = None
    """Input items that replace the conversation. None: the conversation is the input."""
    last_item_id: str | None = None
    """The last item of the conversation when a response out of band began, of which it is the
    input: later items are not. None: there was no item, or the response is not of that kind."""
    number: int = 0
    """Offset of the event that started the response."""
    model: str = ""
    """Digest of the model that generates the response."""


_request_decoder = msgspec.msgpack.Decoder(StoredRequest)


def encode_request(request: StoredRequest) -> bytes:
    if request.settings is None:
        return encode(request)
    settings = _to_stored_settings(request.settings)
    return encode(msgspec.structs.replace(request, settings=settings))


def decode_request(checkpoint: ResponseCheckpoint) -> StoredRequest:
    return decode(_request_decoder, checkpoint.body)

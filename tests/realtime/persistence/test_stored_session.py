"""Tests of the codecs of stored sessions: what is decoded is what was encoded."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine import Grammar, Sampling
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.event_log.replay import LoggedEvent
from continuo.realtime.persistence.event_codec import decode_events, encode_event
from continuo.realtime.persistence.session_codec import (
    ConversationEntry,
    DraftPiece,
    OutOfWindowItems,
    ResponsePlaceholder,
    StoredRequest,
    StoredState,
    decode_entry,
    decode_request,
    decode_state,
    encode_entry,
    encode_request,
    encode_state,
    first_item_id,
)
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
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.response import Response, ResponseError, Usage
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice, Truncation
from continuo.realtime.store import ResponseCheckpoint

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
IDS = st.lists(st.integers(0, (1 << 31) - 1), max_size=300).map(tuple)
SETTINGS = GenerationSettings(
    instructions="Be kind. ünïcödé ✓",
    tools=(Tool(name="look", parameters='{"type": "object"}', strict=True),),
    tool_choice=ToolChoice("function", "look"),
    parallel_tool_calls=False,
    max_output_tokens=7,
    sampling=Sampling(temperature=0.7, logit_bias={5: 1.5}, grammar=Grammar("json_schema", "{}")),
    truncation=Truncation(mode="retention_ratio", ratio=0.5, after_instructions=99),
    extras='{"voice":"ash"}',
)


def user_item(id: str, text: str = "hello") -> MessageItem:
    return MessageItem(id=id, role="user", parts=(ContentPart("input_text", text),))


@given(text=TEXTS, ids=IDS)
def test_user_message_is_decoded_with_its_ids(text: str, ids: tuple[int, ...]) -> None:
    span = decode_entry(encode_entry(Span((user_item("item_1", text),), ids)))
    assert isinstance(span, Span)
    assert (span.items, span.ids, span.is_rendered) == ((user_item("item_1", text),), ids, True)
    assert span.message is not None
    assert span.message.content == text


@given(start=IDS, sampled=IDS, end=IDS, first_id_is_derived=st.booleans())
def test_response_is_decoded_with_its_sampled_ids(
    start: tuple[int, ...],
    sampled: tuple[int, ...],
    end: tuple[int, ...],
    first_id_is_derived: bool,
) -> None:
    id = first_item_id("resp_1") if first_id_is_derived else "item_1"
    items: tuple[Item, ...] = (
        MessageItem(id=id, role="assistant", parts=(), status="incomplete"),
        FunctionCallItem(id="item_2", call_id="call_1", name="look", arguments="{}"),
        FunctionCallOutputItem(id="item_3", call_id="call_1", output="sunny"),
    )
    ids = (*start, *sampled, *end)
    span = decode_entry(encode_entry(Span(items, ids, "resp_1", sampled)))
    assert isinstance(span, Span)
    assert (span.items, span.ids) == (items, ids)
    assert (span.response_id, span.sampled_ids) == ("resp_1", sampled)


@pytest.mark.parametrize(
    "entry",
    [ResponsePlaceholder("resp_1"), OutOfWindowItems((user_item("a"), user_item("b")))],
    ids=lambda entry: type(entry).__name__,
)
def test_entry_is_decoded(entry: ConversationEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(text=TEXTS)
def test_draft_piece_is_decoded(text: str) -> None:
    piece = decode_entry(encode_entry(DraftPiece(text)))
    assert isinstance(piece, DraftPiece)
    assert piece.text == text


@pytest.mark.parametrize("settings", [SETTINGS, GenerationSettings()], ids=["full", "default"])
def test_state_and_request_are_decoded(settings: GenerationSettings) -> None:
    state = StoredState(settings=settings, first=3, model="digest")
    assert decode_state(encode_state(state)) == state
    for request in (
        StoredRequest(settings=settings, context=(user_item("a"),), metadata={"a": "b"}, number=5),
        StoredRequest(),
    ):
        checkpoint = ResponseCheckpoint(id="r", seed=1, prompt=2, body=encode_request(request))
        assert decode_request(checkpoint) == request


def test_default_settings_take_little_room() -> None:
    sampling = msgspec.json.decode(msgspec.json.encode(Sampling()), type=Sampling)
    settings = GenerationSettings(sampling=sampling)
    assert len(encode_state(StoredState(settings=settings))) < 32


# ---------------------------------------------------------------- events

ANSWER = (MessageItem(id=first_item_id("resp_1"), role="assistant", parts=()), user_item("item_9"))
STARTED = Response(
    id="resp_1",
    conversation="conv_1",
    settings=GenerationSettings(max_output_tokens=3, sampling=Sampling(seed=5), extras="{}"),
    metadata={"a": "b"},
)
ENDED = msgspec.structs.replace(
    STARTED,
    status="failed",
    reason="client_cancelled",
    error=ResponseError("code", "message"),
    items=ANSWER,
    usage=Usage(input_tokens=1, output_tokens=2, queued_s=0.1, prefill_s=1 / 3, residency="hot"),
)
OUT_OF_BAND = msgspec.structs.replace(ENDED, conversation=None, items=(user_item("elsewhere"),))
EVENTS = [
    LoggedEvent(SessionConfigured(SETTINGS, Rewind(5, 6))),
    LoggedEvent(ItemAdded(ANSWER[1], None)),
    LoggedEvent(ItemAdded(ANSWER[1], ANSWER[0].id, Rewind(5, 6))),
    LoggedEvent(ItemDeleted("gone", Rewind(0, 1))),
    LoggedEvent(ItemTruncated("item_9", 0, 250, 3, Rewind(1, 2))),
    LoggedEvent(TextAppended(7)),
    LoggedEvent(TextCleared()),
    LoggedEvent(TextCommitted("item_9", "item_8")),
    LoggedEvent(ResponseStarted(STARTED)),
    LoggedEvent(ResponseEnded(ENDED), 8),
    LoggedEvent(ResponseEnded(OUT_OF_BAND), 8),
]


class ConversationOf:
    """Stands for a conversation with the given items."""

    def __init__(self, *items: Item) -> None:
        self._items = items

    def items_with_reasoning(self) -> tuple[Item, ...]:
        return self._items


def decode_stored(bodies: list[bytes], *items: Item) -> list[LoggedEvent]:
    conversation: Any = ConversationOf(*items)
    return decode_events(bodies, SETTINGS, conversation, "conv_1")


def decoded(events: list[LoggedEvent], *items: Item) -> list[LoggedEvent]:
    return decode_stored([encode_event(event) for event in events], *items)


def test_all_events_are_decoded_in_order() -> None:
    assert decoded(EVENTS, *ANSWER) == EVENTS


def test_events_before_a_lost_item_or_earlier_settings_are_left_out() -> None:
    assert decoded(EVENTS, ANSWER[1]) == EVENTS[10:], "the response has an item that is lost"
    assert decoded([EVENTS[5], EVENTS[0], EVENTS[6], EVENTS[0]]) == [EVENTS[6], EVENTS[0]]


def test_entries_without_their_last_field_are_decoded() -> None:
    """A field with a default may be added without another layout."""
    entry = msgspec.msgpack.encode(
        [
            "span",
            [["message", "u1", "user", [["input_text", "hi"]], "completed"]],
            [1, 2],
            None,
            None,
        ]
    )
    span = decode_entry(entry)
    assert isinstance(span, Span)
    assert (span.ids, span.effort) == ((1, 2), "default")
    usage = msgspec.msgpack.encode([9, 8, 7, 0.1, 0.2, 0.3, "hot"])
    assert msgspec.msgpack.decode(usage, type=Usage) == Usage(
        input_tokens=9,
        cached_tokens=8,
        output_tokens=7,
        queued_s=0.1,
        prefill_s=0.2,
        model_s=0.3,
        residency="hot",
    )


def test_span_of_a_response_that_reasoned_is_stored() -> None:
    items = (
        ReasoningItem(id="r1", text="hm"),
        MessageItem(id="a1", role="assistant", parts=(ContentPart("output_text", "Yes."),)),
    )
    span = Span(items, (5, 6, 7), "resp_1", sampled_ids=(6, 7), effort="high")
    decoded = decode_entry(encode_entry(span))
    assert isinstance(decoded, Span)
    assert (decoded.items, decoded.ids, decoded.sampled_ids, decoded.effort) == (
        items,
        (5, 6, 7),
        (6, 7),
        "high",
    )
    assert decoded.message is not None
    assert decoded.message.reasoning == "hm"

"""Tests of layout 1: each of its values is upgraded to what the codecs of today encode."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.event_log.event_log import LoggedEvent
from continuo.realtime.persistence import event_codec
from continuo.realtime.persistence.event_codec import encode_event
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
    first_item_id,
)
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    ItemDeleted,
    OutputItemEnded,
    OutputItemStarted,
    ResponseEnded,
    ResponseStarted,
    ResponseSteered,
    TextDelta,
)
from continuo.realtime.protocol.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    MessageItem,
)
from continuo.realtime.protocol.response import Response, ResponseError, Usage
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.responses import archive
from continuo.realtime.store import ResponseCheckpoint, StoredResponse, codec, layout_v1
from continuo.realtime.store.codec import decode
from tests.realtime.persistence.test_stored_session import (
    ANSWER,
    EVENTS,
    SETTINGS,
    decode_stored,
    user_item,
)
from tests.support import layout_1

ITEM = (
    b'[{"type":"message","id":"item_0f3a9c11d2b3a4958677","role":"user","parts":[{"kind":'
    b'"input_text","text":"Could you tell me how long it takes to walk there?"}],'
    b'"status":"completed"}]'
)
STORED_ENTRY_HEX = (
    "130605000070110101c3ef568334e344cb6443c314a324e344134b530b337373f2dc805978812a36709b0498"
    "e141155131288f97832b235039608fdbcd00"
)


def with_new_fields(entry: bytes) -> bytes:
    """Add the fields that entries have got since layout 2 began, with their defaults."""
    return encode_entry(decode_entry(entry))


IDS = st.lists(st.integers(0, (1 << 31) - 1)) | st.lists(st.integers(0, 150_000))


@given(ids=IDS, text=st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_and_text_of_an_entry_are_kept(ids: list[int], text: str) -> None:
    part = {"kind": "input_text", "text": text}
    item = {"type": "message", "id": "a", "role": "user", "parts": [part], "status": "completed"}
    old = layout_1.pack_entry(msgspec.json.encode({"items": [item]}), ids)
    span = Span((user_item("a", text),), (*ids,))
    assert with_new_fields(layout_v1.upgrade_entry(old)) == encode_entry(span)


@given(ids=st.lists(st.integers(0xD700, 0xE100) | st.integers(0x10F000, 0x111000), min_size=9))
def test_ids_near_the_surrogates_are_kept(ids: list[int]) -> None:
    entry = decode_entry(layout_v1.upgrade_entry(layout_1.pack_entry(b"{}", [*range(99), *ids])))
    assert isinstance(entry, Span)
    assert entry.ids == (*range(99), *ids)


@pytest.mark.parametrize("bits", [8, 9, 11, 12, 15, 16, 17, 23, 24, 25, 31])
def test_ids_of_every_width_are_kept(bits: int) -> None:
    ids = ((1 << bits) - 1,) * 50
    entry = decode_entry(layout_v1.upgrade_entry(layout_1.pack_entry(b"{}", ids)))
    assert isinstance(entry, Span)
    assert entry.ids == ids


def test_entry_stored_by_layout_1_can_be_read() -> None:
    """The bytes were stored by that version: the dictionary of layout 1 must never change."""
    assert layout_v1._unpack_entry(bytes.fromhex(STORED_ENTRY_HEX)) == (
        [5, 70_000],
        msgspec.json.decode(ITEM),
    )


@pytest.mark.parametrize(
    ("body", "entry"),
    [
        ({}, Span()),
        ({"words": ""}, DraftPiece("")),
        ({"words": "a draft"}, DraftPiece("a draft")),
        ({"answer": "resp_1", "open": True}, ResponsePlaceholder("resp_1")),
        ({"items": [], "dropped": True}, OutOfWindowItems(())),
        (
            {
                "items": [
                    {
                        "type": "function_call",
                        "id": "",
                        "call_id": "call_1",
                        "name": "look",
                        "arguments": "{}",
                        "status": "in_progress",
                    },
                    {
                        "type": "function_call_output",
                        "id": "b",
                        "call_id": "call_1",
                        "output": "sunny",
                        "status": "completed",
                    },
                ],
                "answer": "resp_1",
                "sampled": [1, 2],
            },
            Span(
                (
                    FunctionCallItem(
                        id=first_item_id("resp_1"),
                        call_id="call_1",
                        name="look",
                        arguments="{}",
                        status="in_progress",
                    ),
                    FunctionCallOutputItem(id="b", call_id="call_1", output="sunny"),
                ),
                (7, 8, 9),
                "resp_1",
                (8,),
            ),
        ),
    ],
)
def test_entry_is_upgraded(body: dict[str, Any], entry: ConversationEntry) -> None:
    ids = entry.ids if isinstance(entry, Span) else ()
    old = layout_1.pack_entry(msgspec.json.encode(body), ids)
    assert with_new_fields(layout_v1.upgrade_entry(old)) == encode_entry(entry)


def fields_of(value: Any) -> Any:
    """The struct as JSON of layout 1, which has every field of settings."""
    if isinstance(value, msgspec.Struct):
        return {name: fields_of(each) for name, each in msgspec.structs.asdict(value).items()}
    return [fields_of(each) for each in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("settings", [SETTINGS, GenerationSettings()], ids=["full", "default"])
def test_state_is_upgraded(settings: GenerationSettings) -> None:
    old = {"settings": fields_of(settings), "first": 3, "model": "digest"}
    expected = StoredState(settings=settings, first=3, model="digest")
    assert decode_state(layout_v1.upgrade_state(layout_1.pack_json(old))) == expected
    assert layout_v1.upgrade_state(b"") == b"", "the state of a tombstone"


@pytest.mark.parametrize("settings", [SETTINGS, None], ids=["settings", "none"])
def test_checkpoint_is_upgraded(settings: GenerationSettings | None) -> None:
    item = {"type": "message", "id": "a", "role": "user", "parts": [], "status": "completed"}
    request = {"settings": fields_of(settings), "context": [item], "number": 3, "model": "digest"}
    old = ResponseCheckpoint(
        id="resp_1", seed=(1 << 63) - 1, prompt=2, entry=1, body=msgspec.json.encode(request)
    )
    upgraded = msgspec.msgpack.decode(
        layout_v1.upgrade_checkpoint(msgspec.msgpack.encode(old)), type=ResponseCheckpoint
    )
    assert msgspec.structs.replace(upgraded, body=old.body) == old
    context = (MessageItem(id="a", role="user", parts=()),)
    assert decode_request(upgraded) == StoredRequest(
        settings=settings, context=context, number=3, model="digest"
    )


REWIND = {"kept_tokens": 5, "prefill_tokens": 6}
VERBATIM = b"\3"
STARTED = [
    VERBATIM + b"resp_1",
    False,
    0,
    {"a": "b"},
    3,
    {"seed": 5},
    "{}",
    None,
    None,
    None,
    [],
    [],
]
END = [{"a": "b"}, 3, {"seed": 5}, "{}", "client_cancelled", {"code": "code", "message": "message"}]
USAGE = [1, 0, 2, 100_000, 333_333, 0, "hot"]
ELSEWHERE = {
    "type": "message",
    "id": "elsewhere",
    "role": "user",
    "parts": [{"kind": "input_text", "text": "hello"}],
    "status": "completed",
}
OLD_EVENTS: list[list[Any]] = [
    ["c", REWIND],
    ["a", VERBATIM + b"item_9", None, None],
    ["a", VERBATIM + b"item_9", b"\0" + bytes.fromhex(ANSWER[0].id[5:]), REWIND],
    ["d", VERBATIM + b"gone", {"kept_tokens": 0, "prefill_tokens": 1}],
    ["t", VERBATIM + b"item_9", 0, 250, 3, {"kept_tokens": 1, "prefill_tokens": 2}],
    ["h", 7],
    ["x"],
    ["k", VERBATIM + b"item_9", VERBATIM + b"item_8"],
    ["S", STARTED],
    ["E", [VERBATIM + b"resp_1", False, 4, *END, USAGE, [], [b"", VERBATIM + b"item_9"]], 8],
    ["E", [VERBATIM + b"resp_1", True, 4, *END, USAGE, [ELSEWHERE], []], 8],
]
"""EVENTS in layout 1, which has times in microseconds."""


@pytest.mark.parametrize(
    ("old", "event"), [*zip(OLD_EVENTS, EVENTS, strict=True)], ids=lambda each: type(each).__name__
)
def test_event_is_upgraded(old: list[Any], event: LoggedEvent) -> None:
    upgraded = layout_v1.upgrade_event(layout_1.pack(msgspec.msgpack.encode(old)))
    if isinstance(event.event, ResponseEnded):
        usage = event.event.answer.usage
        assert usage is not None
        rounded = msgspec.structs.replace(usage, prefill_s=0.333333)
        answer = msgspec.structs.replace(event.event.answer, usage=rounded)
        event = LoggedEvent(ResponseEnded(answer), event.response_number)
    stored = event_codec._event_decoder
    assert codec.decode(stored, upgraded) == codec.decode(stored, encode_event(event))


@pytest.mark.parametrize(
    "id", ["item_00ff00ff00ff00ff00ff", "resp_" + "a" * 20, "call_" + "0" * 20]
)
def test_generated_ids_of_events_are_kept(id: str) -> None:
    packed = bytes([("item", "resp", "call").index(id[:4])]) + bytes.fromhex(id[5:])
    old = layout_1.pack(msgspec.msgpack.encode(["d", packed, None]))
    assert layout_v1.upgrade_event(old) == encode_event(LoggedEvent(ItemDeleted(id)))


def test_events_up_to_one_that_layout_1_could_not_read_are_not_replayed() -> None:
    bodies = [encode_event(EVENTS[5])]
    for unreadable in (
        b"",
        b"\1nothing",
        layout_1.pack(b"\x92\xa1?\1"),
        layout_1.pack(b"\x91\xa1a"),
    ):
        bodies += [layout_v1.upgrade_event(unreadable), encode_event(EVENTS[6])]
        assert decode_stored(bodies) == [EVENTS[6]]


# ---------------------------------------------------------------- stored responses


def test_stored_response_is_upgraded() -> None:
    settings = fields_of(GenerationSettings())
    answer = {
        "id": "resp_1",
        "conversation": None,
        "settings": settings,
        "metadata": None,
        "status": "in_progress",
        "reason": None,
        "error": None,
        "items": [],
        "usage": None,
        "previous": "resp_0",
        "kept": True,
        "created_s": 5,
        "ended_s": None,
    }
    usage = fields_of(Usage(input_tokens=1, prefill_s=0.5))
    error = {"code": "code", "message": "message"}
    end = {"status": "failed", "items": [ELSEWHERE], "usage": usage, "error": error, "ended_s": 6}
    item = {"answer_id": "resp_1", "index": 0, "item": ELSEWHERE, "previous": None, "apart": True}
    delta = {"answer_id": "resp_1", "index": 0, "item_id": "elsewhere", "text": "hello"}
    call = {"answer_id": "resp_1", "index": 0, "item_id": "elsewhere", "call_id": "call_1"}
    old_events = [
        {"type": "AnswerStarted", "answer": answer},
        {"type": "OutputStarted", **item},
        {"type": "TextDelta", **delta},
        {"type": "ArgumentsDelta", **call, "text": "hello"},
        {"type": "OutputEnded", **item},
        {"type": "Steered", "answer_id": "resp_1", "steer_id": "steer_1"},
        {"type": "AnswerEnded", "answer": {**answer, **end}},
    ]
    started = Response(
        id="resp_1",
        conversation=None,
        settings=GenerationSettings(),
        previous="resp_0",
        kept=True,
        created_s=5,
    )
    ended = msgspec.structs.replace(
        started,
        status="failed",
        items=(user_item("elsewhere"),),
        usage=Usage(input_tokens=1, prefill_s=0.5),
        error=ResponseError("code", "message"),
        ended_s=6,
    )
    message = user_item("elsewhere")
    events = [
        ResponseStarted(started),
        OutputItemStarted("resp_1", 0, message, None, True),
        TextDelta("resp_1", 0, "elsewhere", "hello"),
        ArgumentsDelta("resp_1", 0, "elsewhere", "call_1", "hello"),
        OutputItemEnded("resp_1", 0, message, None, True),
        ResponseSteered("resp_1", "steer_1"),
        ResponseEnded(ended),
    ]
    body = {"items": [ELSEWHERE], "answer": "resp_1", "model": "digest"}
    entries = [
        layout_1.pack_entry(msgspec.json.encode(body), (5, 70_000)),
        layout_1.pack_entry(msgspec.json.encode({"items": [ELSEWHERE]})),
    ]
    old = msgspec.msgpack.encode(("acme", "resp_0", entries, layout_1.pack_json(old_events)))
    upgraded = msgspec.msgpack.decode(
        layout_v1.upgrade_response(old, "resp_1"), type=StoredResponse
    )
    assert (upgraded.id, upgraded.tenant, upgraded.parent) == ("resp_1", "acme", "resp_0")
    assert decode(archive._events_decoder, upgraded.body) == events
    assert [decode(archive._span_decoder, entry) for entry in upgraded.entries] == [
        archive._ArchivedSpan((message,), (5, 70_000), "resp_1", "digest"),
        archive._ArchivedSpan((message,)),
    ]


def test_deleted_response_is_upgraded() -> None:
    old = msgspec.msgpack.encode(("acme", None, [], layout_1.pack(b"")))
    upgraded = msgspec.msgpack.decode(layout_v1.upgrade_response(old, "r"), type=StoredResponse)
    assert upgraded == StoredResponse(id="r", tenant="acme")

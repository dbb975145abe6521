"""The names of the beta version of the Realtime API."""

import json
from typing import Any, get_args

import msgspec
import pytest

from continuo.realtime.errors import BadFrame
from continuo.realtime.limits import FRAME_VALUES_MAX
from continuo.realtime.protocol.realtime_api import Dialect, ServerEvent, client_events
from continuo.realtime.protocol.realtime_api.beta import from_beta, is_beta_event, to_beta
from continuo.realtime.protocol.realtime_api.server_events import (
    Error,
    ErrorBody,
    ItemAdded,
    ItemDone,
    MessageOut,
    OutputItemDone,
    PartOut,
    TextDelta,
    TextDone,
)
from continuo.realtime.protocol.validation import list_tags

BETA_TYPES = {
    "conversation.created",
    "conversation.item.created",
    "conversation.item.deleted",
    "conversation.item.retrieved",
    "conversation.item.truncated",
    "error",
    "input_audio_buffer.cleared",
    "rate_limits.updated",
    "response.content_part.added",
    "response.content_part.done",
    "response.created",
    "response.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.added",
    "response.output_item.done",
    "response.text.delta",
    "response.text.done",
    "session.created",
    "session.updated",
}
"""The server events of the beta that a text server can send."""
EXTENSIONS = (
    "input_text_buffer.",
    "response.interrupted",
    "response.reasoning_",
    "session.closed",
    "session.continuity",
)
ANSWER = MessageOut(
    id="m",
    status="completed",
    role="assistant",
    content=[PartOut(type="output_text", text='say "response.output_text."')],
)


def encode(type: str, **fields: Any) -> str:
    return json.dumps({"type": type, **fields})


@pytest.mark.parametrize(
    ("frame", "is_beta"),
    [
        (encode("session.update", session={"modalities": ["text"]}), True),
        (encode("session.update", session={}), True),
        (encode("session.update", session={"type": "realtime", "modalities": ["text"]}), False),
        (encode("session.update", session=None), False),
        (encode("response.create", response={"modalities": ["text"]}), True),
        (encode("response.create", response={"output_modalities": ["text"]}), False),
        (encode("response.create", response=None), False),
        (encode("response.create"), False),
        (encode("conversation.item.create", item={"modalities": "session.update"}), False),
        ('{"type": "session.update", ', False),
        ("[" * 100_000 + '"session.update"', False),
    ],
)
def test_event_that_only_the_beta_has_is_recognised(frame: str, is_beta: bool) -> None:
    assert is_beta_event(frame) is is_beta


def test_names_of_a_session_are_those_of_ga() -> None:
    session = {
        "modalities": ["audio", "text"],
        "max_response_output_tokens": 7,
        "instructions": "x",
        "voice": "alloy",
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "turn_detection": None,
        "temperature": 0.8,
    }
    event = Dialect(announces_beta=True).decode(encode("session.update", session=session))
    assert isinstance(event, client_events.SessionUpdate)
    assert event.session.output_modalities == ["audio", "text"]
    assert event.session.max_output_tokens == 7
    assert msgspec.to_builtins(event.session)["temperature"] == 0.8


def test_names_of_a_response_are_those_of_ga() -> None:
    response = {"modalities": ["text"], "max_output_tokens": 3}
    event = Dialect(announces_beta=True).decode(encode("response.create", response=response))
    assert isinstance(event, client_events.ResponseCreate)
    assert event.response is not None
    assert event.response.output_modalities == ["text"]
    assert event.response.max_output_tokens == 3


def test_wrong_value_is_refused_as_in_ga() -> None:
    frame = encode("session.update", session={"max_response_output_tokens": 0}, event_id="e")
    with pytest.raises(BadFrame) as caught:
        Dialect(announces_beta=True).decode(frame)
    assert (caught.value.param, caught.value.event_id) == ("session.max_output_tokens", "e")


def test_frame_of_too_many_values_is_not_translated() -> None:
    frame = encode("session.update", session={"tools": [0] * (FRAME_VALUES_MAX + 1)})
    assert from_beta(frame) is frame


def test_client_that_does_not_announce_the_beta_has_ga() -> None:
    dialect = Dialect(announces_beta=False)
    with pytest.raises(BadFrame, match=r"session\.type"):
        dialect.decode(encode("session.update", session={}))
    done = ItemDone(event_id="e", previous_item_id=None, item=ANSWER)
    assert dialect.encode(done) == msgspec.json.encode(done)


def test_dialect_stays_once_it_is_known() -> None:
    dialect = Dialect(announces_beta=True)
    done = ItemDone(event_id="e", previous_item_id=None, item=ANSWER)
    assert dialect.encode(done) == msgspec.json.encode(done), "a proxy may announce it"
    dialect.decode(encode("response.create", response={"modalities": ["text"]}))
    dialect.decode(encode("session.update", session={"type": "realtime"}))
    assert dialect.encode(done) is None


def test_events_have_the_names_of_the_beta() -> None:
    place: dict[str, Any] = {"event_id": "e", "response_id": "r", "output_index": 0}
    text: dict[str, Any] = {**place, "item_id": "m", "content_index": 0}
    events: list[ServerEvent] = [
        ItemAdded(event_id="e", previous_item_id=None, item=ANSWER),
        ItemDone(event_id="e", previous_item_id=None, item=ANSWER),
        TextDelta(**text, delta="response.output_text."),
        TextDone(**text, text="response.output_text."),
        OutputItemDone(**place, item=ANSWER),
        Error(
            event_id="e",
            error=ErrorBody(type="server_error", code="c", message="m", param=None, event_id=None),
        ),
    ]
    sent = [json.loads(frame) for event in events if (frame := to_beta(event)) is not None]
    assert [event["type"] for event in sent] == [
        "conversation.item.created",
        "response.text.delta",
        "response.text.done",
        "response.output_item.done",
        "error",
    ]
    part = {"type": "text", "text": 'say "response.output_text."'}
    assert sent[0]["item"]["content"] == sent[3]["item"]["content"] == [part]
    assert sent[1]["delta"] == sent[2]["text"] == "response.output_text."


def test_every_server_event_has_a_name_in_the_beta_or_is_an_extension() -> None:
    renamed = {
        "conversation.item.added": "conversation.item.created",
        "conversation.item.done": None,
        "response.output_text.delta": "response.text.delta",
        "response.output_text.done": "response.text.done",
    }
    assert len(get_args(ServerEvent)) == len(list_tags(ServerEvent))
    for type in list_tags(ServerEvent):
        name = renamed.get(type, type)
        assert name is None or name in BETA_TYPES or name.startswith(EXTENSIONS), type

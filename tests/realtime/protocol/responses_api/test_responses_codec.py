"""Decoding of Responses and chat requests: any input is decoded or refused with a message."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol import chat_api, responses_api
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.events import ResponseEvent, ResponseSteered
from continuo.realtime.protocol.responses_api import (
    client_events,
    decode_frame,
    decode_input,
    extract_stream_id,
)
from continuo.realtime.protocol.settings import GenerationSettings

TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
FRAMES: list[dict[str, Any]] = [
    {
        "type": "response.create",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "item_reference", "id": "i"},
        ],
        "tools": [TOOL, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {}}},
        "stream_id": "a",
        "metadata": {"k": "v"},
        "temperature": 0.5,
        "stop": ["x"],
    },
    {"type": "response.cancel", "response_id": "resp_1"},
    {"type": "response.steer", "previous_response_id": "resp_1", "input": "x"},
]
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": TOOL | {"arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
}
ODD: tuple[Any, ...] = (None, "", "x", 0, -1, 1e99, True, [], {}, [[]], {"type": "x"}, "\ud800")


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy with keys removed and parts replaced by odd values at random."""
    if rng.random() < 0.15:
        return rng.choice(ODD)
    match value:
        case dict():
            return {key: mutated(inner, rng) for key, inner in value.items() if rng.random() > 0.05}
        case list():
            return [mutated(inner, rng) for inner in value]
        case _:
            return value


def decode(event: client_events.ClientEvent) -> None:
    match event:
        case client_events.ResponseCreate():
            command = responses_api.decode_command(event, GenerationSettings(), "demo", generate_id)
            assert isinstance(command, CreateResponse)
        case client_events.ResponseSteer(input=raw):
            responses_api.decode_steering_input(decode_input(raw), generate_id)
        case client_events.ResponseCancel():
            pass


def is_decoded_or_refused(call: Callable[[], object]) -> bool:
    """Returns False if `call` raises a Refusal without a full sentence or a code."""
    try:
        call()
    except Refusal as refusal:
        return refusal.message.endswith(".") and bool(refusal.code)
    return True


@given(st.integers(0, 2**32), st.sampled_from(FRAMES))
def test_mutated_frames_are_decoded_or_refused(seed: int, frame: dict[str, Any]) -> None:
    text = json.dumps(mutated(frame, random.Random(seed)))
    assert is_decoded_or_refused(lambda: decode(decode_frame(text)))
    stream_id = extract_stream_id(text)
    assert stream_id is None or 0 < len(stream_id) <= 128


@given(st.text())
def test_any_text_is_decoded_or_refused(text: str) -> None:
    for frame in (text, '{"type": "response.create", "input": ' + text):
        assert is_decoded_or_refused(lambda frame=frame: decode(decode_frame(frame)))


@given(st.integers(0, 2**32))
def test_mutated_chats_are_decoded_or_refused(seed: int) -> None:
    body = json.dumps(mutated(CHAT, random.Random(seed))).encode()
    assert is_decoded_or_refused(
        lambda: chat_api.decode_command(
            chat_api.decode_body(body), GenerationSettings(), generate_id
        )
    )


def test_well_formed_requests_are_decoded() -> None:
    for frame in FRAMES:
        decode(decode_frame(json.dumps(frame)))
    command = chat_api.decode_command(
        chat_api.decode_body(json.dumps(CHAT).encode()), GenerationSettings(), generate_id
    )
    assert [type(item).__name__ for item in command.input] == [
        "FunctionCallItem",
        "FunctionCallOutputItem",
    ]
    assert command.settings.instructions == "x"
    grammar = command.settings.sampling.grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"
    decoded = msgspec.json.decode(
        msgspec.json.encode([ResponseSteered("a", "b")]), type=list[ResponseEvent]
    )
    assert decoded == [ResponseSteered("a", "b")], "the event does not survive encoding"

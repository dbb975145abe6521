"""Each event of the Responses API over a WebSocket, seen on the wire of a real client: one test
a row.

As in test_rows, recorded transcripts are looked at.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.test_rows import Line, has, recorded

CLIENT_EVENTS: dict[str, tuple[str, ...]] = {
    "response.create": ("response.created", "response.in_progress", "response.completed"),
    "response.cancel": ("response.incomplete: cancelled",),
    "response.steer": ("response.steer.accepted", "response.incomplete: steered"),
}
"""What a client says, and what comes back somewhere behind it."""

STEERED = ("response.steer.accepted", "response.steer.pending", "response.steer.failed")
CREATE_KEYS = (
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls"),
    *("previous_response_id", "store", "include", "reasoning", "text", "temperature", "top_p"),
    *("max_output_tokens", "metadata", "prompt_cache_key", "service_tier", "truncation"),
    *("client_metadata", "generate", "stream_id", "stream", "background"),
)
"""What real clients send, whether or not we have a use for it."""
INPUT_ITEMS: dict[str, dict[str, Any]] = {
    "a message without a type": {"role": "user", "content": "hello"},
    "function_call": {"type": "function_call"},
    "function_call_output": {"type": "function_call_output"},
    "function_call_output with an id": {"type": "function_call_output", "id": "fco_1"},
    "reasoning": {"type": "reasoning"},
    "item_reference": {"type": "item_reference"},
}
SKIPPED_TOOLS = ("namespace", "web_search")

_PART = ("item_id", "output_index", "content_index")
_USAGE = (
    *("input_tokens", "input_tokens_details.cached_tokens", "output_tokens"),
    *("input_tokens_details.cache_write_tokens", "output_tokens_details.reasoning_tokens"),
    "total_tokens",
)
_RESPONSE = (
    *("id", "object", "created_at", "status", "model", "output", "parallel_tool_calls"),
    *("tool_choice", "tools", "temperature", "top_p", "metadata", "error", "incomplete_details"),
    *("instructions", "previous_response_id", "store", "usage"),
    *(f"usage.{key}" for key in _USAGE),
)
_WHOLE = tuple(f"response.{key}" for key in _RESPONSE)
SERVER_EVENTS: dict[str, tuple[str, ...]] = {
    "response.created": _WHOLE,
    "response.in_progress": _WHOLE,
    "response.output_item.added": ("output_index", "item.id", "item.type"),
    "response.output_item.done": ("output_index", "item.id", "item.type", "item.status"),
    "response.content_part.added": (*_PART, "part.type", "part.text", "part.annotations"),
    "response.content_part.done": (*_PART, "part.type", "part.text", "part.annotations"),
    "response.output_text.delta": (*_PART, "delta", "logprobs"),
    "response.output_text.done": (*_PART, "text", "logprobs"),
    "response.function_call_arguments.delta": ("item_id", "output_index", "delta"),
    "response.function_call_arguments.done": ("item_id", "output_index", "arguments", "name"),
    "response.completed": _WHOLE,
    "response.incomplete": _WHOLE,
    "response.steer.accepted": ("steer.id", "steer.previous_response_id"),
    "response.steer.pending": ("steer.id", "steer.previous_response_id", "required_input"),
    "response.steer.failed": ("error.code", "error.message", "steer.input"),
    "error": ("status", "error.type", "error.message", "error.code", "error.param"),
}
"""What the server says, and what must be in it."""
UNNUMBERED = {"error", "response.steer.failed"}
REASONS = ("max_output_tokens", "cancelled", "steered")
REFUSALS = ("previous_response_not_found", "context_length_exceeded", "response_not_active")
RESERVED = {"raw", "close", "event", "reconnecting", "reconnected", "open"}
"""openai-node uses these names itself."""


def connections() -> list[list[Line]]:
    """The client is the first to say something."""
    return [lines for lines in recorded() if lines[0].side == "C"]


def lines(side: str, kind: str) -> list[Line]:
    return [
        line for each in connections() for line in each if (line.side, line.kind) == (side, kind)
    ]


def behind(kind: str) -> Iterator[list[Line]]:
    for each in connections():
        for number, line in enumerate(each):
            if (line.side, line.kind) == ("C", kind):
                yield [later for later in each[number + 1 :] if later.side == "S"]


def asked() -> list[dict[str, Any]]:
    """What was answered by a response."""
    found: list[dict[str, Any]] = []
    for each in connections():
        for number, line in enumerate(each):
            later = next((after for after in each[number + 1 :] if after.side == "S"), None)
            if line.kind == "response.create" and later and later.kind == "response.created":
                found.append(line.event)
    return found


def says(line: Line) -> set[str]:
    reason = (line.event.get("response", {}).get("incomplete_details") or {}).get("reason")
    return {line.kind, f"{line.kind}: {reason}"}


@pytest.mark.parametrize("kind", CLIENT_EVENTS)
def test_client_event(kind: str) -> None:
    wanted = set(CLIENT_EVENTS[kind])
    replies = [set[str]().union(*map(says, later)) for later in behind(kind)]
    assert replies, f"no client has said {kind}"
    assert any(wanted <= replied for replied in replies)


@pytest.mark.parametrize("kind", STEERED)
def test_answer_to_steering(kind: str) -> None:
    assert any(line.kind == kind for later in behind("response.steer") for line in later)


@pytest.mark.parametrize("key", CREATE_KEYS)
def test_key_of_create(key: str) -> None:
    assert any(key in said for said in asked())


@pytest.mark.parametrize("name", INPUT_ITEMS)
def test_input_item(name: str) -> None:
    wanted = INPUT_ITEMS[name].items()
    inputs = [said["input"] for said in asked() if isinstance(said["input"], list)]
    items = [item for given in inputs for item in given]
    found = [
        item
        for item in items
        if wanted <= {key: item[key] for key in item if key in dict(wanted)}.items()
    ]
    assert found
    if name == "a message without a type":
        assert any("type" not in item for item in found)


@pytest.mark.parametrize("kind", SKIPPED_TOOLS)
def test_tool_that_is_skipped(kind: str) -> None:
    assert any(tool["type"] == kind for said in asked() for tool in said.get("tools", ()))


@pytest.mark.parametrize("kind", SERVER_EVENTS)
def test_server_event(kind: str) -> None:
    seen = lines("S", kind)
    assert seen, f"the server has not said {kind}"
    for line in seen:
        assert kind in UNNUMBERED or "sequence_number" in line.event
        for path in SERVER_EVENTS[kind]:
            assert has(line.event, path.split(".")), f"{path} of {line.event}"


@pytest.mark.parametrize("reason", REASONS)
def test_reason_of_an_incomplete_response(reason: str) -> None:
    wanted = f"response.incomplete: {reason}"
    assert any(wanted in says(line) for line in lines("S", "response.incomplete"))


@pytest.mark.parametrize("code", REFUSALS)
def test_refusal(code: str) -> None:
    refused = [line.event for line in lines("S", "error") if line.event["error"]["code"] == code]
    assert refused
    assert all(event["status"] == 400 for event in refused)


def test_lanes_are_named_in_every_event() -> None:
    lanes = {
        line.event["stream_id"]
        for each in connections()
        for line in each
        if "stream_id" in line.event
    }
    assert {"a", "b", "c"} <= lanes


def test_nothing_is_said_before_it_is_asked_for() -> None:
    assert len(connections()) > 10
    assert all(each[0].kind in CLIENT_EVENTS for each in connections())


def test_no_event_has_a_reserved_name() -> None:
    assert not RESERVED & {line.kind for each in recorded() for line in each if line.side == "S"}

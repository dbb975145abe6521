"""Each key, item and refusal of the Responses API over a WebSocket, seen on the wire of both
SDKs: one test a row."""

from typing import Any

import pytest

from tests.clients.response_rows import RESPONSES
from tests.clients.rows import CLIENTS, exchanges, says

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
REASONS = ("max_output_tokens", "cancelled", "steered")
REFUSALS = ("previous_response_not_found", "context_length_exceeded", "response_not_active")
LEAST = {"python": 10, "node": 3}
"""Connections."""
RESERVED = {"raw", "close", "event", "reconnecting", "reconnected", "open"}
"""openai-node uses these names itself."""


def asked(client: str) -> list[dict[str, Any]]:
    """What was answered by a response."""
    return list(RESPONSES.of(client).answered("response.create", "response.created"))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", STEERED)
def test_answer_to_steering(kind: str, client: str) -> None:
    behind = RESPONSES.of(client).behind("response.steer")
    assert any(line.kind == kind for later in behind for line in later)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("key", CREATE_KEYS)
def test_key_of_create(key: str, client: str) -> None:
    assert any(key in said for said in asked(client))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", INPUT_ITEMS)
def test_input_item(name: str, client: str) -> None:
    wanted = INPUT_ITEMS[name].items()
    inputs = [said["input"] for said in asked(client) if isinstance(said["input"], list)]
    items = [item for given in inputs for item in given]
    found = [
        item
        for item in items
        if wanted <= {key: item[key] for key in item if key in dict(wanted)}.items()
    ]
    assert found
    if name == "a message without a type":
        assert any("type" not in item for item in found)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", SKIPPED_TOOLS)
def test_tool_that_is_skipped(kind: str, client: str) -> None:
    assert any(tool["type"] == kind for said in asked(client) for tool in said.get("tools", ()))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("reason", REASONS)
def test_reason_of_an_incomplete_response(reason: str, client: str) -> None:
    ended = RESPONSES.of(client).said("S", "response.incomplete")
    assert any(f"response.incomplete: {reason}" in says(line) for line in ended)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("code", REFUSALS)
def test_refusal(code: str, client: str) -> None:
    errors = RESPONSES.of(client).said("S", "error")
    refused = [line.event for line in errors if line.event["error"]["code"] == code]
    assert refused
    assert all(event["status"] == 400 for event in refused)


@pytest.mark.parametrize("client", CLIENTS)
def test_lanes_are_named_in_every_event(client: str) -> None:
    lanes = {
        line.event["stream_id"]
        for lines in RESPONSES.of(client).connections
        for line in lines
        if "stream_id" in line.event
    }
    assert {"a", "b", "c"} <= lanes


@pytest.mark.parametrize("client", CLIENTS)
def test_nothing_is_said_before_it_is_asked_for(client: str) -> None:
    """But that the connection is over."""
    over = "error: websocket_connection_limit_reached"
    first = [lines[0] for lines in RESPONSES.of(client).connections]
    asked = [line for line in first if over not in says(line)]
    assert len(asked) > LEAST[client]
    assert {line.kind for line in asked} <= {*RESPONSES.client_events}
    assert {line.side for line in asked} == {"C"}


@pytest.mark.parametrize("client", CLIENTS)
def test_no_event_has_a_reserved_name(client: str) -> None:
    kinds = {line.kind for lines in exchanges(client) for line in lines if line.side == "S"}
    assert not RESERVED & kinds

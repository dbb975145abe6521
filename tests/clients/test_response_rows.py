"""Keys, items and refusals of the Responses API over a WebSocket in the transcripts of both SDKs,
one test per row."""

from typing import Any

import pytest

from tests.clients.response_rows import RESPONSES
from tests.clients.rows import CLIENTS, event_names, exchanges

STEERED = ("response.steer.accepted", "response.steer.pending", "response.steer.failed")
CREATE_KEYS = (
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls"),
    *("previous_response_id", "store", "include", "reasoning", "text", "temperature", "top_p"),
    *("max_output_tokens", "metadata", "prompt_cache_key", "service_tier", "truncation"),
    *("client_metadata", "generate", "stream_id", "stream", "background"),
)
"""Keys that real clients send, including those that the server ignores."""
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
CONNECTIONS_MIN = {"python": 10, "node": 3}
"""Fewest connections in the transcripts of each client."""
RESERVED = {"raw", "close", "event", "reconnecting", "reconnected", "open"}
"""Names that openai-node uses for events of its own."""


def requests_of(client: str) -> list[dict[str, Any]]:
    """Return the requests that a response answered."""
    return list(RESPONSES.of(client).requests_answered_by("response.create", "response.created"))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", STEERED)
def test_steer_event_is_answered(kind: str, client: str) -> None:
    replies = RESPONSES.of(client).replies_after("response.steer")
    assert any(line.kind == kind for later in replies for line in later)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("key", CREATE_KEYS)
def test_create_key_is_accepted(key: str, client: str) -> None:
    assert any(key in request for request in requests_of(client))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", INPUT_ITEMS)
def test_input_item_is_accepted(name: str, client: str) -> None:
    wanted = INPUT_ITEMS[name].items()
    inputs = [
        request["input"] for request in requests_of(client) if isinstance(request["input"], list)
    ]
    items = [item for input in inputs for item in input]
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
def test_unsupported_tool_is_skipped(kind: str, client: str) -> None:
    assert any(
        tool["type"] == kind for request in requests_of(client) for tool in request.get("tools", ())
    )


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("reason", REASONS)
def test_incomplete_response_has_its_reason(reason: str, client: str) -> None:
    ended = RESPONSES.of(client).lines("S", "response.incomplete")
    assert any(f"response.incomplete: {reason}" in event_names(line) for line in ended)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("code", REFUSALS)
def test_refusal_is_an_error_with_status_400(code: str, client: str) -> None:
    errors = RESPONSES.of(client).lines("S", "error")
    refused = [line.event for line in errors if line.event["error"]["code"] == code]
    assert refused
    assert all(event["status"] == 400 for event in refused)


@pytest.mark.parametrize("client", CLIENTS)
def test_events_name_their_stream(client: str) -> None:
    streams = {
        line.event["stream_id"]
        for lines in RESPONSES.of(client).connections
        for line in lines
        if "stream_id" in line.event
    }
    assert {"a", "b", "c"} <= streams


@pytest.mark.parametrize("client", CLIENTS)
def test_client_sends_the_first_frame(client: str) -> None:
    """Only a connection at its limit begins with an error of the server."""
    expired = "error: websocket_connection_limit_reached"
    first = [lines[0] for lines in RESPONSES.of(client).connections]
    requests = [line for line in first if expired not in event_names(line)]
    assert len(requests) > CONNECTIONS_MIN[client]
    assert {line.kind for line in requests} <= {*RESPONSES.client_events}
    assert {line.side for line in requests} == {"C"}


@pytest.mark.parametrize("client", CLIENTS)
def test_no_event_type_is_reserved_by_openai_node(client: str) -> None:
    kinds = {line.kind for lines in exchanges(client) for line in lines if line.side == "S"}
    assert not RESERVED & kinds

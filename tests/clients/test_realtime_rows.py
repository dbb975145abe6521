"""Each key, item and refusal of the Realtime API, seen on the wire of both SDKs: one test a row."""

import pytest

from tests.clients.realtime_rows import REALTIME
from tests.clients.rows import CLIENTS, holds, says

REFUSALS: dict[str, str] = {
    "response.cancel": "response_cancel_not_active",
    "response.create": "conversation_already_has_active_response",
    "conversation.item.create": "item_create_duplicate_item_id",
    "conversation.item.retrieve": "item_retrieve_invalid_item_id",
    "input_audio_buffer.commit": "input_audio_buffer_commit_empty",
}
"""Codes that clients act on. Each error names the event it answers."""

SESSION_KEYS = (
    *("type", "model", "output_modalities", "instructions", "tools", "tool_choice"),
    *("parallel_tool_calls", "max_output_tokens", "audio", "tracing", "truncation", "prompt"),
    *("include", "reasoning"),
)
"""What clients set, whether or not a server of text has a use for it."""
RESPONSE_KEYS = (
    *("conversation", "input", "instructions", "metadata", "output_modalities", "tools"),
    *("tool_choice", "max_output_tokens", "parallel_tool_calls", "audio", "prompt", "reasoning"),
)
"""The same of one response."""
ITEMS = {
    "message system": {"role": "system", "content": [{"type": "input_text"}]},
    "message user": {"role": "user", "content": [{"type": "input_text"}]},
    "message assistant": {"role": "assistant", "content": [{"type": "output_text"}]},
    "function_call": {"type": "function_call"},
    "function_call_output": {"type": "function_call_output"},
}
"""What may be put into a conversation."""
LEAST = {"python": 30, "node": 10}
"""Connections."""
RATE_LIMIT = ("name", "limit", "remaining", "reset_seconds")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", REFUSALS)
def test_refusal_of(kind: str, client: str) -> None:
    wanted = f"error: {REFUSALS[kind]}"
    behind = REALTIME.of(client).behind(kind)
    assert any(wanted in says(line) for later in behind for line in later)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("key", SESSION_KEYS)
def test_session_key(key: str, client: str) -> None:
    said = REALTIME.of(client).answered("session.update", "session.updated")
    assert any(key in event["session"] for event in said)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("key", RESPONSE_KEYS)
def test_response_key(key: str, client: str) -> None:
    said = REALTIME.of(client).answered("response.create", "response.created")
    assert any(key in event.get("response", {}) for event in said)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ITEMS)
def test_item(name: str, client: str) -> None:
    said = REALTIME.of(client).answered("conversation.item.create", "conversation.item.added")
    assert any(holds(event["item"], ITEMS[name]) for event in said)


def test_rate_limits_are_numbers() -> None:
    """Where there are any: a server without limits lists none."""
    told = REALTIME.of("python").said("S", "rate_limits.updated")
    for line in told:
        limits = line.event["rate_limits"]
        assert [limit["name"] for limit in limits] == ["requests", "tokens"]
        assert all(limit[key] is not None for limit in limits for key in RATE_LIMIT)
    assert told


@pytest.mark.parametrize("client", CLIENTS)
def test_the_first_frame_is_the_session(client: str) -> None:
    first = [lines[0].kind for lines in REALTIME.of(client).connections]
    assert len(first) > LEAST[client]
    assert set(first) == {"session.created", "error"}, "an error says why there is no session"


@pytest.mark.parametrize("client", CLIENTS)
def test_part_types_are_text_in_events_and_output_text_in_items(client: str) -> None:
    wire = REALTIME.of(client)
    events = [*wire.said("S", "response.content_part.added")]
    events += wire.said("S", "response.content_part.done")
    assert {line.event["part"]["type"] for line in events} == {"text"}


@pytest.mark.parametrize("client", CLIENTS)
def test_additions_are_heard_by_those_who_use_them(client: str) -> None:
    heard = 0
    for lines in REALTIME.of(client).connections:
        used: set[str] = set()
        for line in lines:
            group, _, _ = line.kind.partition(".")
            if line.side == "C":
                used.add("session.closed" if line.kind == "session.close" else group)
            elif group == "input_text_buffer":
                assert group in used
                heard += 1
            elif line.kind == "session.closed":
                assert line.kind in used
                heard += 1
    assert heard > 3

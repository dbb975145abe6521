"""Keys, items and refusals of the Realtime API in the transcripts of both SDKs: a test per row."""

import pytest

from tests.clients.realtime_rows import REALTIME
from tests.clients.rows import CLIENTS, contains, event_names

REFUSALS: dict[str, str] = {
    "response.cancel": "response_cancel_not_active",
    "response.create": "conversation_already_has_active_response",
    "conversation.item.create": "item_create_duplicate_item_id",
    "conversation.item.retrieve": "item_retrieve_invalid_item_id",
    "input_audio_buffer.commit": "input_audio_buffer_commit_empty",
}
"""Error codes that clients act on, by the event that is refused."""

SESSION_KEYS = (
    *("type", "model", "output_modalities", "instructions", "tools", "tool_choice"),
    *("parallel_tool_calls", "max_output_tokens", "audio", "tracing", "truncation", "prompt"),
    *("include", "reasoning"),
)
"""Keys that clients set, including those without meaning for text."""
RESPONSE_KEYS = (
    *("conversation", "input", "instructions", "metadata", "output_modalities", "tools"),
    *("tool_choice", "max_output_tokens", "parallel_tool_calls", "audio", "prompt", "reasoning"),
)
"""Keys that clients set for one response."""
ITEMS = {
    "message system": {"role": "system", "content": [{"type": "input_text"}]},
    "message user": {"role": "user", "content": [{"type": "input_text"}]},
    "message assistant": {"role": "assistant", "content": [{"type": "output_text"}]},
    "function_call": {"type": "function_call"},
    "function_call_output": {"type": "function_call_output"},
}
"""Kinds of items that clients add to a conversation."""
CONNECTIONS_MIN = {"python": 30, "node": 10}
"""Fewest connections in the transcripts of each client."""
RATE_LIMIT = ("name", "limit", "remaining", "reset_seconds")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", REFUSALS)
def test_refused_client_event_gets_its_error_code(kind: str, client: str) -> None:
    wanted = f"error: {REFUSALS[kind]}"
    replies = REALTIME.of(client).replies_after(kind)
    assert any(wanted in event_names(line) for later in replies for line in later)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("key", SESSION_KEYS)
def test_session_key_is_accepted(key: str, client: str) -> None:
    requests = REALTIME.of(client).requests_answered_by("session.update", "session.updated")
    assert any(key in event["session"] for event in requests)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("key", RESPONSE_KEYS)
def test_response_key_is_accepted(key: str, client: str) -> None:
    requests = REALTIME.of(client).requests_answered_by("response.create", "response.created")
    assert any(key in event.get("response", {}) for event in requests)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ITEMS)
def test_item_kind_is_accepted(name: str, client: str) -> None:
    requests = REALTIME.of(client).requests_answered_by(
        "conversation.item.create", "conversation.item.added"
    )
    assert any(contains(event["item"], ITEMS[name]) for event in requests)


def test_rate_limits_are_numbers() -> None:
    """Without limits the list is empty; otherwise no number is null."""
    updates = REALTIME.of("python").lines("S", "rate_limits.updated")
    for line in updates:
        limits = line.event["rate_limits"]
        assert [limit["name"] for limit in limits] == ["requests", "tokens"]
        assert all(limit[key] is not None for limit in limits for key in RATE_LIMIT)
    assert updates


@pytest.mark.parametrize("client", CLIENTS)
def test_first_frame_is_session_created_or_an_error(client: str) -> None:
    first = [lines[0].kind for lines in REALTIME.of(client).connections]
    assert len(first) > CONNECTIONS_MIN[client]
    assert set(first) == {"session.created", "error"}, "an error explains the missing session"


@pytest.mark.parametrize("client", CLIENTS)
def test_content_part_events_have_the_part_type_text(client: str) -> None:
    recording = REALTIME.of(client)
    events = [*recording.lines("S", "response.content_part.added")]
    events += recording.lines("S", "response.content_part.done")
    assert {line.event["part"]["type"] for line in events} == {"text"}


@pytest.mark.parametrize("client", CLIENTS)
def test_extension_events_are_sent_only_to_clients_that_use_them(client: str) -> None:
    received = 0
    for lines in REALTIME.of(client).connections:
        used: set[str] = set()
        for line in lines:
            group, _, _ = line.kind.partition(".")
            if line.side == "C":
                used.add("session.closed" if line.kind == "session.close" else group)
            elif group == "input_text_buffer":
                assert group in used
                received += 1
            elif line.kind == "session.closed":
                assert line.kind in used
                received += 1
    assert received > 3

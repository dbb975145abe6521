"""Each event of the Realtime API, seen on the wire of a real client: one test a row.

What is looked at are the recorded transcripts, which every run of the flows is compared with.
"""

import functools
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.clients.transcripts import GOLDEN

EMPTY = "error: input_audio_buffer_commit_empty"
CLIENT_EVENTS: dict[str, tuple[str, ...]] = {
    "session.update": ("session.updated",),
    "conversation.item.create": ("conversation.item.added", "conversation.item.done"),
    "conversation.item.retrieve": ("conversation.item.retrieved",),
    "conversation.item.truncate": ("conversation.item.truncated",),
    "conversation.item.delete": ("conversation.item.deleted",),
    "response.create": ("response.created", "response.done"),
    "response.cancel": ("response.done: cancelled",),
    "input_audio_buffer.append": (),
    "input_audio_buffer.commit": (EMPTY,),
    "input_audio_buffer.clear": ("input_audio_buffer.cleared",),
    "output_audio_buffer.clear": (),
    "input_text_buffer.append": ("input_text_buffer.appended",),
    "input_text_buffer.replace": ("input_text_buffer.appended",),
    "input_text_buffer.clear": ("input_text_buffer.cleared",),
    "input_text_buffer.commit": ("input_text_buffer.committed", "conversation.item.added"),
    "session.close": ("session.closed", "close 1000"),
}
"""What a client says, and what comes back somewhere behind it."""

REFUSALS: dict[str, str] = {
    "response.cancel": "response_cancel_not_active",
    "response.create": "conversation_already_has_active_response",
    "conversation.item.create": "item_create_duplicate_item_id",
    "conversation.item.retrieve": "item_retrieve_invalid_item_id",
    "input_audio_buffer.commit": "input_audio_buffer_commit_empty",
}
"""Codes that clients act on. Each error names the event it answers."""

_OUTPUT = ("response_id", "output_index")
_PART = ("response_id", "item_id", "output_index", "content_index")
_CALL = ("response_id", "item_id", "output_index", "call_id")
SERVER_EVENTS: dict[str, tuple[str, ...]] = {
    "session.created": ("session.type", "session.id", "session.audio.input.turn_detection"),
    "session.updated": ("session.type", "session.id"),
    "conversation.item.added": ("item.id", "item.type", "previous_item_id"),
    "conversation.item.done": ("item.id", "item.status", "previous_item_id"),
    "conversation.item.retrieved": ("item.id", "item.content"),
    "conversation.item.deleted": ("item_id",),
    "conversation.item.truncated": ("item_id", "content_index", "audio_end_ms"),
    "response.created": ("response.id", "response.status", "response.output"),
    "response.output_item.added": (*_OUTPUT, "item.id", "item.status"),
    "response.content_part.added": (*_PART, "part.type"),
    "response.output_text.delta": (*_PART, "delta"),
    "response.output_text.done": (*_PART, "text"),
    "response.content_part.done": (*_PART, "part.type", "part.text"),
    "response.function_call_arguments.delta": (*_CALL, "delta"),
    "response.function_call_arguments.done": (*_CALL, "name", "arguments"),
    "response.output_item.done": (*_OUTPUT, "item.id", "item.status"),
    "response.done": (
        *("response.id", "response.object", "response.status", "response.status_details"),
        *("response.output", "response.metadata", "response.conversation_id", "response.audio"),
        *("response.output_modalities", "response.max_output_tokens"),
        *("response.usage.total_tokens", "response.usage.input_tokens"),
        *("response.usage.output_tokens", "response.usage.input_token_details.cached_tokens"),
        "response.usage.input_token_details.cached_tokens_details.text_tokens",
        *("response.usage.output_token_details.text_tokens",),
    ),
    "rate_limits.updated": ("rate_limits",),
    "error": ("error.type", "error.code", "error.message", "error.param", "error.event_id"),
}
"""What the server says, and what must be in it."""


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
RATE_LIMIT = ("name", "limit", "remaining", "reset_seconds")


class Line(NamedTuple):
    side: str
    kind: str
    event: dict[str, Any]


@functools.cache
def recorded() -> list[list[Line]]:
    """Every recorded connection of the Python SDK."""
    found: list[list[Line]] = []
    for path in sorted((GOLDEN / "python").rglob("*.txt")):
        by_number: dict[str, list[Line]] = {}
        for text in path.read_text().splitlines():
            number, side, frame = text.split(" ", 2)
            by_number.setdefault(number, []).append(_line(side, frame))
        found += by_number.values()
    return found


def connections() -> list[list[Line]]:
    """Those to the Realtime endpoint: the server is the first to say something."""
    return [lines for lines in recorded() if lines[0].kind == "session.created"]


def _line(side: str, frame: str) -> Line:
    try:
        event = json.loads(frame)
        return Line(side, event["type"], event)
    except (ValueError, KeyError, TypeError):
        return Line(side, frame, {})


def behind(kind: str) -> Iterator[list[Line]]:
    """What comes after an event of a client, each time."""
    for lines in connections():
        for number, line in enumerate(lines):
            if (line.side, line.kind) == ("C", kind):
                yield [later for later in lines[number + 1 :] if later.side == "S"]


def says(line: Line) -> set[str]:
    """How a reply is named in the tables."""
    names = {line.kind}
    if line.kind == "response.done":
        names.add(f"{line.kind}: {line.event['response']['status']}")
    if line.kind == "error":
        names.add(f"{line.kind}: {line.event['error']['code']}")
    return names


def has(value: dict[str, Any] | None, path: list[str]) -> bool:
    """Whether it has what is there; null has nothing, as the usage of a response without any."""
    if value is None or not path:
        return True
    return path[0] in value and (len(path) == 1 or has(value[path[0]], path[1:]))


@pytest.mark.parametrize("kind", CLIENT_EVENTS)
def test_client_event(kind: str) -> None:
    wanted = set(CLIENT_EVENTS[kind])
    replies = [set[str]().union(*map(says, later)) for later in behind(kind)]
    assert replies, f"no client has said {kind}"
    assert any(wanted <= replied for replied in replies)


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusal_of(kind: str) -> None:
    wanted = f"error: {REFUSALS[kind]}"
    assert any(wanted in says(line) for later in behind(kind) for line in later)


@pytest.mark.parametrize("kind", SERVER_EVENTS)
def test_server_event(kind: str) -> None:
    seen = [
        line for lines in connections() for line in lines if (line.side, line.kind) == ("S", kind)
    ]
    assert seen, f"the server has not said {kind}"
    for line in seen:
        assert line.event["event_id"]
        for path in SERVER_EVENTS[kind]:
            assert has(line.event, path.split(".")), f"{path} of {line.event}"


def accepted(kind: str, reply: str) -> Iterator[dict[str, Any]]:
    """What a client said that was answered by `reply` next."""
    for lines in connections():
        for line, later in itertools.pairwise(lines):
            if (line.side, line.kind, later.kind) == ("C", kind, reply):
                yield line.event


@pytest.mark.parametrize("key", SESSION_KEYS)
def test_session_key(key: str) -> None:
    assert any(key in said["session"] for said in accepted("session.update", "session.updated"))


@pytest.mark.parametrize("key", RESPONSE_KEYS)
def test_response_key(key: str) -> None:
    said = accepted("response.create", "response.created")
    assert any(key in event.get("response", {}) for event in said)


@pytest.mark.parametrize("name", ITEMS)
def test_item(name: str) -> None:
    said = accepted("conversation.item.create", "conversation.item.added")
    assert any(holds(event["item"], ITEMS[name]) for event in said)


def holds(value: Any, wanted: Any) -> bool:
    """All that is wanted, and maybe more."""
    match wanted:
        case dict():
            return all(key in value and holds(value[key], wanted[key]) for key in wanted)
        case list():
            return all(holds(inner, want) for inner, want in zip(value, wanted, strict=False))
        case _:
            return value == wanted


def test_rate_limits_are_numbers() -> None:
    """Where there are any: a server without limits lists none."""
    told = [line for lines in connections() for line in lines if line.kind == "rate_limits.updated"]
    for line in told:
        limits = line.event["rate_limits"]
        assert [limit["name"] for limit in limits] == ["requests", "tokens"]
        assert all(limit[key] is not None for limit in limits for key in RATE_LIMIT)
    assert told


def test_the_first_frame_is_the_session() -> None:
    assert all(lines[0].side == "S" for lines in connections())
    assert len(connections()) > 30


def test_part_types_are_text_in_events_and_output_text_in_items() -> None:
    parts = [
        line.event["part"]["type"]
        for lines in connections()
        for line in lines
        if line.kind.startswith("response.content_part.")
    ]
    assert set(parts) == {"text"}

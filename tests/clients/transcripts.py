"""Transcripts of conversations on the wire, normalized so that runs can be compared.

An exchange over HTTP is recorded like a connection: method and path, the request body, the status,
and the response body or its events.

Differences between runs are normalized: ids are numbered in order of appearance, generated text,
counts and times are "…" or 0, and only the first delta of a text is kept, because the number of
deltas depends on how fast they are read. Sampling parameters of a Realtime session or response that
have their defaults are left out, so that a new parameter leaves the recorded transcripts as they
are. The order of the frames of both sides and all other fields remain.

Concurrent responses are streams: each stream has an order of its own, and streams have none among
each other. Such a transcript is compared stream by stream.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.support.sampling_defaults import without_default_sampling

GOLDEN = Path(__file__).with_name("golden")
SHORT_CHARS_MAX = 160
"""Longer texts, but ids, are replaced by their beginning and their length."""
ELLIPSIS = "…"
CHUNK = "chat.completion.chunk"
"""The kind of event of which only the first of adjacent equal ones is kept."""
_ID = re.compile(
    r"\b(?:(sess|conv|item|msg|resp|call|steer|chatcmpl)[_-][0-9A-Za-z_-]*[0-9a-f]{20}\b"
    r"|(ek)_[0-9A-Za-z_-]{64,})"
)
_WAIT = re.compile(r"Try again in [0-9.]+ s")
_COUNTED = ("event_id", "sequence_number")
_COUNTS = {"usage", "rewind", "rate_limits", "kv"}
_MASKED = {
    "completed_at",
    "created",
    "created_at",
    "epoch",
    "expires_at",
    "residency",
    "seed",
    "token",
    "tokens",
}

Entry = tuple[int, str, str]
"""(number of the connection, "C" or "S", frame)"""


def by_stream(transcript: Iterable[Entry]) -> list[Entry]:
    """Group the server's events between two frames of the client by stream, in the order of their
    normalized text."""
    ordered: list[Entry] = []
    for _, together in itertools.groupby(transcript, lambda entry: entry[:2]):
        streams: dict[str, list[Entry]] = {}
        at = ""
        for entry in together:
            at = _stream(entry, at)
            streams.setdefault(at, []).append(entry)
        ordered += itertools.chain(*sorted(streams.values(), key=normalize))
    return ordered


def mask_calls(transcript: Iterable[Entry]) -> list[Entry]:
    """Mask names and arguments of calls, which a model at a high temperature chooses."""

    def masked(value: Any) -> Any:
        match value:
            case {"name": _, "arguments": _}:
                return {**value, "name": ELLIPSIS, "arguments": ELLIPSIS}
            case dict():
                return {key: masked(inner) for key, inner in value.items()}
            case list():
                return [masked(inner) for inner in value]
            case _:
                return value

    return [
        (number, side, json.dumps(masked(json.loads(frame))) if frame.startswith("{") else frame)
        for number, side, frame in transcript
    ]


def _stream(entry: Entry, before: str) -> str:
    """Return the id of an event's stream or response, or `before` if the event names neither."""
    _, side, frame = entry
    if side == "C" or not frame.startswith("{"):
        return ""
    event = json.loads(frame)
    created = event.get("response", {}).get("id", before)
    return event.get("stream_id") or event.get("response_id") or created


def normalize(transcript: Iterable[Entry]) -> str:
    """Return the normalized transcript, one line per frame."""
    ids: dict[str, str] = {}
    return "".join(f"{line}\n" for line in _lines(transcript, ids))


def _lines(transcript: Iterable[Entry], ids: dict[str, str]) -> Iterator[str]:
    started: set[tuple[int, str]] = set()
    before = ""
    for number, side, frame in transcript:
        event = _parsed(frame)
        if event is None:
            yield f"{number} {side} {_named(_short(frame), ids)}"
            continue
        if side == "S" and event.get("type", "").endswith(".delta"):
            if (number, event["item_id"]) in started:
                continue
            started.add((number, event["item_id"]))
        event = _normalized_event(event) if side == "S" else _normalized_request(event)
        line = f"{number} {side} {_named(json.dumps(_shortened(event), ensure_ascii=False), ids)}"
        if event.get("object") != CHUNK or line != before:
            yield line
        before = line


def _parsed(frame: str) -> dict[str, Any] | None:
    """Parse a frame. Returns None if it is no JSON object."""
    try:
        event = json.loads(frame)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _normalized_event(event: Any) -> Any:
    """Mask what a model, a clock or chance decides in an event of the server."""
    event = {**event, **{key: ELLIPSIS for key in _COUNTED if key in event}}
    if event.get("type", "").startswith("response."):
        event |= {key: ELLIPSIS for key in ("delta", "text") if key in event}
        if "part" in event:
            event["part"] = {**event["part"], "text": ELLIPSIS}
    return _normalized(event)


def _normalized_request(event: Any) -> Any:
    """Mask earlier output of the model in a request: a chat has its whole history."""
    if "messages" not in event:
        return event
    return {**event, "messages": [_normalized(message) for message in event["messages"]]}


def _normalized(value: Any, *, counts: bool = False) -> Any:
    match value:
        case {"role": "assistant", "content": [*parts], **rest}:
            masked = [{**part, "text": ELLIPSIS} for part in parts]
            return {**_normalized(rest), "role": "assistant", "content": masked}
        case {"delta": dict(piece), **rest}:
            return {**_normalized(rest), "delta": _piece(piece)}
        case {"role": "assistant", "content": str(), **rest}:
            return {**_normalized(rest), "role": "assistant", "content": ELLIPSIS}
        case dict():
            return {
                key: ELLIPSIS
                if key in _MASKED and inner is not None
                else _normalized(inner, counts=counts or key in _COUNTS)
                for key, inner in without_default_sampling(value)
            }
        case list():
            return [_normalized(inner, counts=counts) for inner in value]
        case int() | float() if counts:
            return 0
        case _:
            return value


def _piece(delta: dict[str, Any]) -> dict[str, Any]:
    """Mask the content and arguments that one chunk of a chat completion adds."""
    calls = [
        {**call, "function": {**call["function"], "arguments": ELLIPSIS}}
        for call in delta.get("tool_calls", ())
    ]
    content = {"content": ELLIPSIS} if "content" in delta else {}
    return {**delta, **content, **({"tool_calls": calls} if calls else {})}


def _named(line: str, ids: dict[str, str]) -> str:
    def name(found: re.Match[str]) -> str:
        kind = found[1] or found[2]
        taken = sum(known.startswith(f"{kind}_") for known in ids.values())
        return ids.setdefault(found[0], f"{kind}_{taken + 1}")

    return _WAIT.sub(f"Try again in {ELLIPSIS} s", _ID.sub(name, line))


def _shortened(value: Any) -> Any:
    match value:
        case dict():
            return {key: _shortened(inner) for key, inner in value.items()}
        case list():
            return [_shortened(inner) for inner in value]
        case str():
            return _short(value)
        case _:
            return value


def _short(text: str) -> str:
    is_whole = len(text) <= SHORT_CHARS_MAX or _ID.fullmatch(text)
    return text if is_whole else f"{text[:20]}… ({len(text):,} characters)"


def golden(client: str, flow: str) -> Path:
    return GOLDEN / client / f"{flow}.txt"


def check(client: str, flow: str, transcript: Iterable[Entry], *, record: bool) -> None:
    """Compare a transcript with the recorded one, or write it with `record`."""
    path, now = golden(client, flow), normalize(transcript)
    if record:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now)
        return
    assert path.exists(), f"not recorded yet: pytest tests/clients --record writes {path.name}"
    before = path.read_text()
    assert now.splitlines() == before.splitlines(), (
        f"the wire has changed; if that is meant, pytest tests/clients --record writes {path.name}"
    )

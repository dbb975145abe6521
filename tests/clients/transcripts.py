"""A conversation as it was on the wire, and as a reader can compare it with another run.

An exchange over HTTP stands like a connection: what is asked for and the body, the status and the
answer, or its events.

What differs from run to run is levelled: ids are numbered as they come, the model's words, counts
and times are "…" or 0, and of the pieces of one text only the first stays, for how many there are
depends on how fast they are read. What is left is who says what when, and every field of it.

Responses that are made beside each other are streams: each is promised its own order, and none
among them. Such a transcript is compared stream by stream.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden")
SHORT = 160
"""Characters; longer texts are described."""
ELLIPSIS = "…"
CHUNK = "chat.completion.chunk"
"""Of those that look alike beside each other the first stays."""
_ID = re.compile(r"\b(sess|conv|item|resp|call|ek|steer|chatcmpl)[_-][0-9A-Za-z_-]*[0-9a-f]{20}\b")
_WAIT = re.compile(r"Try again in [0-9.]+ s")
_COUNTED = ("event_id", "sequence_number")
_COUNTS = {"usage", "rewind", "rate_limits", "kv"}
_LEVELLED = {
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
    """What the server says between two frames of the client, each stream's events together. Which
    stream stands first is a matter of what it says."""
    ordered: list[Entry] = []
    for _, together in itertools.groupby(transcript, lambda entry: entry[:2]):
        streams: dict[str, list[Entry]] = {}
        at = ""
        for entry in together:
            at = _stream(entry, at)
            streams.setdefault(at, []).append(entry)
        ordered += itertools.chain(*sorted(streams.values(), key=level))
    return ordered


def cooled(transcript: Iterable[Entry]) -> list[Entry]:
    """Without what a hot model chooses: the tool it calls, and with what."""

    def cool(value: Any) -> Any:
        match value:
            case {"name": _, "arguments": _}:
                return {**value, "name": ELLIPSIS, "arguments": ELLIPSIS}
            case dict():
                return {key: cool(inner) for key, inner in value.items()}
            case list():
                return [cool(inner) for inner in value]
            case _:
                return value

    return [
        (number, side, json.dumps(cool(json.loads(frame))) if frame.startswith("{") else frame)
        for number, side, frame in transcript
    ]


def _stream(entry: Entry, before: str) -> str:
    """The lane, or the response; what names none belongs to what was said `before`."""
    _, side, frame = entry
    if side == "C" or not frame.startswith("{"):
        return ""
    event = json.loads(frame)
    made = event.get("response", {}).get("id", before)
    return event.get("stream_id") or event.get("response_id") or made


def level(transcript: Iterable[Entry]) -> str:
    """One line a frame."""
    ids: dict[str, str] = {}
    return "".join(f"{line}\n" for line in _lines(transcript, ids))


def _lines(transcript: Iterable[Entry], ids: dict[str, str]) -> Iterator[str]:
    begun: set[tuple[int, str]] = set()
    before = ""
    for number, side, frame in transcript:
        event = _parsed(frame)
        if event is None:
            yield f"{number} {side} {_named(_short(frame), ids)}"
            continue
        if side == "S" and event.get("type", "").endswith(".delta"):
            if (number, event["item_id"]) in begun:
                continue
            begun.add((number, event["item_id"]))
        event = _said(event) if side == "S" else _resent(event)
        line = f"{number} {side} {_named(json.dumps(_shortened(event), ensure_ascii=False), ids)}"
        if event.get("object") != CHUNK or line != before:
            yield line
        before = line


def _parsed(frame: str) -> dict[str, Any] | None:
    """None: it is no JSON object."""
    try:
        event = json.loads(frame)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _said(event: Any) -> Any:
    """An event of the server without what a model, a clock or chance decide."""
    event = {**event, **{key: ELLIPSIS for key in _COUNTED if key in event}}
    if event.get("type", "").startswith("response."):
        event |= {key: ELLIPSIS for key in ("delta", "text") if key in event}
        if "part" in event:
            event["part"] = {**event["part"], "text": ELLIPSIS}
    return _levelled(event)


def _resent(event: Any) -> Any:
    """What a client says, without what the model had said before: a chat has its whole history."""
    if "messages" not in event:
        return event
    return {**event, "messages": [_levelled(message) for message in event["messages"]]}


def _levelled(value: Any, *, counts: bool = False) -> Any:
    match value:
        case {"role": "assistant", "content": [*parts], **rest}:
            said = [{**part, "text": ELLIPSIS} for part in parts]
            return {**_levelled(rest), "role": "assistant", "content": said}
        case {"delta": dict(piece), **rest}:
            return {**_levelled(rest), "delta": _piece(piece)}
        case {"role": "assistant", "content": str(), **rest}:
            return {**_levelled(rest), "role": "assistant", "content": ELLIPSIS}
        case dict():
            return {
                key: ELLIPSIS
                if key in _LEVELLED and inner is not None
                else _levelled(inner, counts=counts or key in _COUNTS)
                for key, inner in value.items()
            }
        case list():
            return [_levelled(inner, counts=counts) for inner in value]
        case int() | float() if counts:
            return 0
        case _:
            return value


def _piece(delta: dict[str, Any]) -> dict[str, Any]:
    """What one chunk of a chat completion adds."""
    calls = [
        {**call, "function": {**call["function"], "arguments": ELLIPSIS}}
        for call in delta.get("tool_calls", ())
    ]
    said = {"content": ELLIPSIS} if "content" in delta else {}
    return {**delta, **said, **({"tool_calls": calls} if calls else {})}


def _named(line: str, ids: dict[str, str]) -> str:
    def name(found: re.Match[str]) -> str:
        kind = found[1]
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
    return text if len(text) <= SHORT else f"{text[:20]}… ({len(text):,} characters)"


def golden(client: str, flow: str) -> Path:
    return GOLDEN / client / f"{flow}.txt"


def check(client: str, flow: str, transcript: Iterable[Entry], *, record: bool) -> None:
    """Against the recorded one; `record` writes it instead."""
    path, now = golden(client, flow), level(transcript)
    if record:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now)
        return
    assert path.exists(), f"not recorded yet: pytest tests/clients --record writes {path.name}"
    before = path.read_text()
    assert now.splitlines() == before.splitlines(), (
        f"the wire has changed; if that is meant, pytest tests/clients --record writes {path.name}"
    )

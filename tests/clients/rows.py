"""Where the rows of the protocol are looked for: in the recorded transcripts of real clients, which
every run of their flows is compared with."""

import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from tests.clients.transcripts import GOLDEN

CLIENTS = ("python", "node")


class Line(NamedTuple):
    side: str
    kind: str
    event: dict[str, Any]


Connection = list[Line]


class Wire(NamedTuple):
    """One API as one client has spoken it."""

    connections: list[Connection]

    def said(self, side: str, kind: str) -> list[Line]:
        return [
            line
            for lines in self.connections
            for line in lines
            if (line.side, line.kind) == (side, kind)
        ]

    def behind(self, kind: str) -> Iterator[list[Line]]:
        """What the server says after an event of a client, each time."""
        for lines in self.connections:
            for number, line in enumerate(lines):
                if (line.side, line.kind) == ("C", kind):
                    yield [later for later in lines[number + 1 :] if later.side == "S"]

    def answered(self, kind: str, reply: str) -> Iterator[dict[str, Any]]:
        """What a client said that was answered by `reply` next."""
        for lines in self.connections:
            for line, later in itertools.pairwise(lines):
                if (line.side, line.kind, later.kind) == ("C", kind, reply):
                    yield line.event


class Api(NamedTuple):
    """Its rows: what a client says and what comes back somewhere behind it, and what the server
    says and what must be in it."""

    client_events: Mapping[str, tuple[str, ...]]
    server_events: Mapping[str, tuple[str, ...]]
    """Each a path (`find`)."""
    server_first: bool
    """With an event that has an id; the other API has none."""

    def of(self, client: str) -> Wire:
        return Wire(
            [
                lines
                for lines in exchanges(client)
                if not is_request(lines[0]) and ("event_id" in lines[0].event) == self.server_first
            ]
        )


def says(line: Line) -> set[str]:
    """How a reply is named in the tables."""
    match line.event:
        case {"type": "response.done", "response": {"status": more}}:
            return {line.kind, f"{line.kind}: {more}"}
        case {"type": "response.incomplete", "response": {"incomplete_details": {"reason": more}}}:
            return {line.kind, f"{line.kind}: {more}"}
        case {"type": "error", "error": {"code": more}}:
            return {line.kind, f"{line.kind}: {more}"}
        case _:
            return {line.kind}


Found = Literal["there", "null", "missing"]


def find(event: Any, path: str) -> Found:
    """What `path` leads to: `a.b` is there, never null; `a?.b` may be null at a, as it is allowed
    to be; `a.b: null` is there and is null, always."""
    keys, _, null = path.partition(": ")
    for key in keys.split("."):
        name = key.removesuffix("?")
        if not isinstance(event, dict) or name not in event:
            return "missing"
        event = event[name]
        if event is None and name != key:
            return "null"
    return "there" if (event is None) == bool(null) else "missing"


def holds(value: Any, wanted: Any) -> bool:
    """All that is wanted, and maybe more."""
    match wanted:
        case dict():
            return all(key in value and holds(value[key], wanted[key]) for key in wanted)
        case list():
            return all(holds(inner, want) for inner, want in zip(value, wanted, strict=False))
        case _:
            return value == wanted


@functools.cache
def exchanges(client: str) -> list[Connection]:
    """Every recorded connection, and every exchange over HTTP."""
    found: list[Connection] = []
    for path in sorted((GOLDEN / client).rglob("*.txt")):
        lines = (text.split(" ", 2) for text in path.read_text().splitlines())
        by_number: dict[str, Connection] = {}
        for number, side, frame in lines:
            by_number.setdefault(number, []).append(_line(side, frame))
        found += by_number.values()
    return found


def is_request(line: Line) -> bool:
    return line.kind.partition(" ")[0] in ("GET", "POST", "DELETE")


def _line(side: str, frame: str) -> Line:
    try:
        event = json.loads(frame)
        return Line(side, event["type"], event)
    except (ValueError, KeyError, TypeError):
        return Line(side, frame, {})

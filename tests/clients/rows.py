"""Recorded transcripts of real clients, in which the rows of the protocol are looked for.

Every run of the flows is compared with these transcripts.
"""

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


class Recording(NamedTuple):
    """The recorded connections of one client to one API."""

    connections: list[Connection]

    def lines(self, side: str, kind: str) -> list[Line]:
        """Return the frames of one kind that one side sent."""
        return [
            line
            for lines in self.connections
            for line in lines
            if (line.side, line.kind) == (side, kind)
        ]

    def replies_after(self, kind: str) -> Iterator[list[Line]]:
        """Yield the frames of the server after each event of this kind."""
        for lines in self.connections:
            for number, line in enumerate(lines):
                if (line.side, line.kind) == ("C", kind):
                    yield [later for later in lines[number + 1 :] if later.side == "S"]

    def requests_answered_by(self, kind: str, reply: str) -> Iterator[dict[str, Any]]:
        """Yield the events of the client that `reply` follows immediately."""
        for lines in self.connections:
            for line, later in itertools.pairwise(lines):
                if (line.side, line.kind, later.kind) == ("C", kind, reply):
                    yield line.event


class Api(NamedTuple):
    """The rows of one API: the replies somewhere after each event of a client, and the fields of
    each event of the server."""

    client_events: Mapping[str, tuple[str, ...]]
    server_events: Mapping[str, tuple[str, ...]]
    """Each field is a path (`find`)."""
    server_first: bool
    """Whether the server sends the first event, which then has an event id."""

    def of(self, client: str) -> Recording:
        return Recording(
            [
                lines
                for lines in exchanges(client)
                if not is_request(lines[0]) and ("event_id" in lines[0].event) == self.server_first
            ]
        )


def event_names(line: Line) -> set[str]:
    """Return the names of a reply in the tables: its type, and its type with status or code."""
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
    """Look up `path`: `a.b` must be present and not null, `a?.b` may be null at a, and `a.b: null`
    must be present and null."""
    keys, _, null = path.partition(": ")
    for key in keys.split("."):
        name = key.removesuffix("?")
        if not isinstance(event, dict) or name not in event:
            return "missing"
        event = event[name]
        if event is None and name != key:
            return "null"
    return "there" if (event is None) == bool(null) else "missing"


def contains(value: Any, expected: Any) -> bool:
    """Whether `value` has everything in `expected`, and possibly more."""
    match expected:
        case dict():
            return all(key in value and contains(value[key], expected[key]) for key in expected)
        case list():
            return all(contains(inner, item) for inner, item in zip(value, expected, strict=False))
        case _:
            return value == expected


@functools.cache
def exchanges(client: str) -> list[Connection]:
    """Return every recorded connection and every exchange over HTTP."""
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

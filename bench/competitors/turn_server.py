"""The process of a competitor: serves the turns of sessions, requested by JSON lines on stdin.

Uses only the standard library, because it runs in the competitor's environment. Times are those of
the monotonic clock, which the client shares. A turn begins and ends, for its figures, in this
process, and a session's next turn may be sent ahead, so that a client costs the competitor nothing.
"""

import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

Ids = list[int]
READ_BYTES_MAX = 1 << 20
GATHER_S = 0.001
"""Time for which an idle server waits for more lines after the first. It is not part of a turn."""


class Setup(NamedTuple):
    """First line on stdin: what to load, and how."""

    folder: str
    mode: str
    dtype: str
    """float32, bfloat16, or a format of GGUF files, such as q8_0."""
    threads: int
    gguf: str
    """File for the converted weights, made if it does not exist."""


class Request(NamedTuple):
    """A turn: keep the first `kept` ids of the session's context, append `ids`, generate."""

    session: int
    kept: int
    ids: Ids
    tokens: int
    temperature: float
    top_p: float


class Drawn(NamedTuple):
    session: int
    id: int
    at_s: float


class CompetitorBackend(Protocol):
    version: str
    step_bytes: float | None
    """Bytes of weights that a step reads, if known."""

    def resize(self, sessions: int, context: int) -> None:
        """Make room for sessions 0 to `sessions` - 1 of `context` ids each, all of them empty."""
        ...

    def submit(self, request: Request) -> None:
        """Begin a turn. Returns at once."""
        ...

    def step(self) -> list[Drawn]:
        """Compute until at least one step is done. Returns the ids drawn; may be empty."""
        ...


class SequentialBackend:
    """Runs one turn at a time, in FIFO order. `generate` returns the ids of a turn and the time of
    each."""

    def __init__(self, generate: Callable[[Request, Ids], list[tuple[int, float]]]) -> None:
        self._generate = generate
        self._contexts: list[Ids] = []
        self._queue: deque[Request] = deque()

    def resize(self, sessions: int, context: int) -> None:
        """Begin anew with empty sessions; a list grows by itself, whatever the `context`."""
        del context
        self._contexts = [[] for _ in range(sessions)]

    def submit(self, request: Request) -> None:
        self._queue.append(request)

    def step(self) -> list[Drawn]:
        request = self._queue.popleft()
        context = self._contexts[request.session]
        context[request.kept :] = request.ids
        drawn = self._generate(request, context)
        context += [id for id, _ in drawn]
        return [Drawn(request.session, id, at_s) for id, at_s in drawn]


class _Running(NamedTuple):
    """A turn in flight."""

    begin_s: float
    tokens: int
    drawn: list[Drawn]


class TurnServer:
    """Passes requests to a backend, and the ids that it draws back, a line for each turn. Requests
    of a session wait for one another; each begins when the one before has ended."""

    def __init__(self, backend: CompetitorBackend, write: Callable[[Any], None]) -> None:
        self._backend = backend
        self._write = write
        self._running: dict[int, _Running] = {}
        self._waiting: dict[int, deque[dict[str, Any]]] = {}
        self._ended: list[tuple[int, _Running]] = []
        """Turns that have ended and are not reported yet."""

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def receive(self, lines: Sequence[dict[str, Any]]) -> None:
        """Handle lines that have arrived together. A line is {"resize": [sessions, context]}, or a
        Request with `sent_s` and `until_s`, the times at which it was sent and after which it must
        not begin."""
        was_busy, received_s = self.is_busy, now_s()
        for line in lines:
            if "resize" in line:
                self._backend.resize(*line["resize"])
                self._write({"resized": True})
                continue
            session = line["session"]
            self._waiting.setdefault(session, deque()).append(line)
            if session not in self._running:
                # A turn that was sent during a step has waited for its end. An idle backend begins
                # at once, and the way from the client is not its own.
                self._begin_next(session, line["sent_s"] if was_busy else received_s)

    def step(self) -> None:
        """Let the backend compute, and report the turns that have ended."""
        for drawn in self._backend.step():
            turn = self._running[drawn.session]
            turn.drawn.append(drawn)
            if len(turn.drawn) == turn.tokens:
                del self._running[drawn.session]
                self._ended.append((drawn.session, turn))
                self._begin_next(drawn.session, now_s())
                if not self._waiting[drawn.session]:
                    self._report()

    def _report(self) -> None:
        """Report the turns that have ended. Until a client waits for one, they are kept, because a
        client that wakes up takes a processor from the backend."""
        for session, turn in self._ended:
            self._write(
                {
                    "session": session,
                    "begin_s": turn.begin_s,
                    "ids": [each.id for each in turn.drawn],
                    "token_s": [each.at_s for each in turn.drawn],
                }
            )
        self._ended.clear()

    def _begin_next(self, session: int, begin_s: float) -> None:
        """Begin the next turn of a session; those that are too late are answered without ids."""
        waiting = self._waiting[session]
        while waiting:
            line = waiting.popleft()
            del line["sent_s"]
            if now_s() >= line.pop("until_s"):
                self._report()
                self._write({"session": session, "ids": []})
                continue
            request = Request(**line)
            self._running[session] = _Running(begin_s, request.tokens, [])
            self._backend.submit(request)
            return


def serve_stdin(load: Callable[[Setup], CompetitorBackend]) -> None:
    """Load what the first line of stdin describes, and serve turns until stdin ends."""
    lines = _Lines()
    # stdout carries nothing but replies, even if a library prints something.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(value: Any) -> None:
        output.write(json.dumps(value) + "\n")

    setup: list[dict[str, Any]] = []
    while not setup and not lines.has_ended:
        setup = lines.read(None)
    if not setup:
        return
    backend = load(Setup(**setup[0]))
    server = TurnServer(backend, write)
    write({"version": backend.version, "step_bytes": backend.step_bytes})
    server.receive(setup[1:])
    while not lines.has_ended:
        if server.is_busy:
            server.receive(lines.read(0))
            server.step()
        else:
            arrived = lines.read(None)
            # Turns that clients begin together are computed together from their first step on.
            while more := lines.read(GATHER_S):
                arrived += more
            server.receive(arrived)


class _Lines:
    """The lines of stdin, read without a thread."""

    def __init__(self) -> None:
        self._rest = b""
        self.has_ended = False

    def read(self, timeout_s: float | None) -> list[dict[str, Any]]:
        """Return the lines that have arrived. Waits until there is something to read; None: for
        ever."""
        fd = sys.stdin.fileno()
        if self.has_ended or not select.select([fd], [], [], timeout_s)[0]:
            return []
        data = os.read(fd, READ_BYTES_MAX)
        self.has_ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def now_s() -> float:
    """Return the time by the clock that the client uses as well."""
    return time.perf_counter()

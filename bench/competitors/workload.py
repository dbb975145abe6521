"""The clients of a competitor: one per session, each sends a turn when its previous one has ended.

Uses only the standard library, because it runs in the competitor's process and environment. The
clients share one thread. A turn's wall clock includes its time in the competitor's queue, like that
of a real client.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

Ids = list[int]
Prompts = list[list[Ids]]
"""The ids to append in each turn: prompts[session][turn]."""


class Workload(NamedTuple):
    folder: str
    mode: str
    dtype: str
    threads: int
    ids_out: int
    prompts: Prompts
    limit_s: float

    @property
    def context_max(self) -> int:
        """The number of ids of the longest session after its last turn."""
        return max(sum(len(ids) + self.ids_out for ids in session) for session in self.prompts)


class WorkloadResult(NamedTuple):
    version: str
    seconds: list[list[float]]
    """Client wall clock of each turn: seconds[session][turn]."""
    outputs: list[list[Ids]]


class CompetitorBackend(Protocol):
    def submit(self, session: int, ids: Ids) -> None:
        """Begin a session's next turn by appending ids. Returns at once."""
        ...

    def step(self) -> list[tuple[int, Ids]]:
        """Compute until at least one step is done. Returns (session, ids generated) of each turn
        that has ended; may be empty."""
        ...


class SequentialBackend:
    """Runs one turn at a time, in FIFO order. `generate`: appends ids to a session and returns the
    ids generated."""

    def __init__(self, generate: Callable[[int, Ids], Ids]) -> None:
        self._generate = generate
        self._queue: deque[tuple[int, Ids]] = deque()

    def submit(self, session: int, ids: Ids) -> None:
        self._queue.append((session, ids))

    def step(self) -> list[tuple[int, Ids]]:
        session, ids = self._queue.popleft()
        return [(session, self._generate(session, ids))]


def run_workload(backend: CompetitorBackend, job: Workload, version: str) -> WorkloadResult:
    """Run all turns of all sessions; no turn begins after the time limit of the workload."""
    sessions = range(len(job.prompts))
    result = WorkloadResult(version, [[] for _ in sessions], [[] for _ in sessions])
    start_s: dict[int, float] = {}
    limit_s = time.perf_counter() + job.limit_s

    def begin(session: int) -> None:
        turn = len(result.outputs[session])
        if turn < len(job.prompts[session]) and time.perf_counter() < limit_s:
            start_s[session] = time.perf_counter()
            backend.submit(session, job.prompts[session][turn])

    for session in sessions:
        begin(session)
    while start_s:
        for session, output in backend.step():
            result.seconds[session].append(time.perf_counter() - start_s.pop(session))
            assert len(output) == job.ids_out, f"{len(output)} ids instead of {job.ids_out}"
            result.outputs[session].append(output)
            begin(session)
    return result


def serve_stdin(run: Callable[[Workload], WorkloadResult]) -> None:
    """Read a workload as JSON from standard input, run it, and print the result as JSON in the last
    line of standard output."""
    job = Workload(*json.load(sys.stdin))
    print("\n" + json.dumps(run(job)))

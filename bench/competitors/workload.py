"""The clients of a peer: one for each session, each sends its next turn when the last is answered.

Standard library only: this runs in the peer's process, in whatever environment the peer lives. They
are one thread: a turn waits in the peer's own queue, so its wall clock is what a client would see.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

Ids = list[int]
Prompts = list[list[Ids]]
"""[session][turn] -> the ids to append."""


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
        """Of one session's context at its end."""
        return max(sum(len(ids) + self.ids_out for ids in session) for session in self.prompts)


class WorkloadResult(NamedTuple):
    version: str
    seconds: list[list[float]]
    """[session][turn]"""
    outputs: list[list[Ids]]


class CompetitorBackend(Protocol):
    def submit(self, session: int, ids: Ids) -> None:
        """The session's next turn: the ids to append. Returns at once."""
        ...

    def step(self) -> list[tuple[int, Ids]]:
        """Works for a while. Returns the turns that ended: the session, and what was said."""
        ...


class SequentialBackend:
    """A peer that answers one turn at a time, first come, first served."""

    def __init__(self, generate: Callable[[int, Ids], Ids]) -> None:
        self._generate = generate
        self._queue: deque[tuple[int, Ids]] = deque()

    def submit(self, session: int, ids: Ids) -> None:
        self._queue.append((session, ids))

    def step(self) -> list[tuple[int, Ids]]:
        session, ids = self._queue.popleft()
        return [(session, self._generate(session, ids))]


def run_workload(peer: CompetitorBackend, job: Workload, version: str) -> WorkloadResult:
    """All turns of all sessions; past the limit no new turn is begun."""
    sessions = range(len(job.prompts))
    played = WorkloadResult(version, [[] for _ in sessions], [[] for _ in sessions])
    began: dict[int, float] = {}
    limit = time.perf_counter() + job.limit_s

    def begin(session: int) -> None:
        turn = len(played.outputs[session])
        if turn < len(job.prompts[session]) and time.perf_counter() < limit:
            began[session] = time.perf_counter()
            peer.submit(session, job.prompts[session][turn])

    for session in sessions:
        begin(session)
    while began:
        for session, said in peer.step():
            played.seconds[session].append(time.perf_counter() - began.pop(session))
            assert len(said) == job.ids_out, f"{len(said)} ids instead of {job.ids_out}"
            played.outputs[session].append(said)
            begin(session)
    return played


def serve_stdin(run: Callable[[Workload], WorkloadResult]) -> None:
    """The peer's process: a job on standard input, the answer as the last line of the output."""
    job = Workload(*json.load(sys.stdin))
    print("\n" + json.dumps(run(job)))

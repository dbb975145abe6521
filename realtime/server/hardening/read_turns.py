"""Read turns: a limit on the large input that the event loop handles before other work.

One read returns up to 256 KiB, which can contain hundreds of messages, and hundreds of connections
may be readable at the same time. So a connection whose last read was large waits for a read turn
before its next read, and an application waits for one after each few messages that were already
queued. Each round grants TURNS_PER_ROUND turns, in order of arrival; a connection that sends little
never waits. After a round, the next one is delayed by the time that the round took: a small request
needs about ten iterations of the event loop, and would otherwise wait for a round of reads in each.

New connections wait for turns of their own before what they have sent is processed: to open a
hundred connections takes 0.1 s, and behind large input they would wait long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

TURNS_PER_ROUND = 2
"""Turns granted per round; a round of the largest reads takes about 5 ms."""
NEW_CONNECTIONS_PER_ROUND = 4
"""Turns granted per round to new connections; a round of requests and upgrades takes about 5 ms."""
ITERATIONS_PER_ROUND = 3
"""Iterations of the event loop over which a round is measured: a connection is read in the first
one after its turn, and the application begins with the request in the second one."""


class ReadTurns:
    """The queue of connections of one server process that wait for a read turn."""

    def __init__(self, per_round: int = TURNS_PER_ROUND) -> None:
        self._per_round = per_round
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def call_in_turn(self, callback: Callable[[], None]) -> None:
        """Queue `callback`, and call it when its turn is granted."""
        self._waiting.append(callback)
        self._schedule()

    async def wait(self) -> None:
        """Wait until a turn is granted to the caller."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_in_turn(partial(_resolve, turn))
        await turn

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_round)

    def _run_round(self) -> None:
        self._scheduled = bool(self._waiting)
        if not self._scheduled:
            return
        started_s = asyncio.get_running_loop().time()
        for _ in range(min(self._per_round, len(self._waiting))):
            self._waiting.popleft()()
        self._end_round(started_s, ITERATIONS_PER_ROUND)

    def _end_round(self, started_s: float, iterations: int) -> None:
        """Run the next round after these iterations, and as much time as they have taken."""
        loop = asyncio.get_running_loop()
        if iterations:
            loop.call_soon(self._end_round, started_s, iterations - 1)
        else:
            loop.call_later(loop.time() - started_s, self._run_round)


def _resolve(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)

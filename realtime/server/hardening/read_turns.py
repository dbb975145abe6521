"""Read turns: how much large input the event loop handles before it serves other connections.

A read takes up to 256 KiB, which holds hundreds of messages, and hundreds of connections may be
readable at the same time. A connection whose last read was large waits for its turn before the next
one; so does a connection whose next message is queued before the application receives it.
TURNS_PER_ROUND of them continue in one round, in order of arrival; a connection that sends little
never waits. After a round as much time is left to other work as the round took: a small request
needs about ten iterations of the event loop, and would wait in each of them for a round of reads.

New connections have turns of their own before their first read, for a hundred of them at once take
0.1 s to read, authenticate and open, and behind large input they would wait long.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

TURNS_PER_ROUND = 2
"""Turns in a round: about 5 ms of the largest reads."""
NEW_CONNECTIONS_PER_ROUND = 8
"""About 3 ms of requests and upgrades."""


class ReadTurns:
    """The connections of one server process that wait for their turn to read."""

    def __init__(self, per_round: int = TURNS_PER_ROUND) -> None:
        self._per_round = per_round
        self._waiting: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def call_in_turn(self, callback: Callable[[], None]) -> None:
        """Queue `callback` and call it in its turn."""
        self._waiting.append(callback)
        self._schedule()

    async def wait(self) -> None:
        """Wait until this reader may read."""
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
        for _ in range(min(self._per_round, len(self._waiting))):
            self._waiting.popleft()()
        # What these connections have sent is read before the next iteration of the event loop.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._end_round, loop.time())

    def _end_round(self, started_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(loop.time() - started_s, self._run_round)


def _resolve(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)

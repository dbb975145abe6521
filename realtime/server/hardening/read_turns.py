"""Read turns: a limit on the time that the event loop spends on input before other work.

What a byte costs is the peer's choice: 256 KiB, one read, take 0.2 ms as one message and 0.3 s as
43,000 pings. So input is not counted but timed. A connection's unread bytes wait in the connection,
and a reader parses them slice by slice in turns of TURN_S. Turns are granted in rounds of ROUND_S;
after a round, the next one is delayed by twice the time that the round and the work it began have
taken. A small request needs two or three iterations of the event loop, and would otherwise wait for
a round in each. A round grants turns to readers with few unread bytes first, and among readers with
about as many to each tenant in its turn (`waiting_readers`). So a client that sends little does not
wait behind clients that send much, nor behind hundreds of another tenant or without a key that send
as little. A round ends with a turn of the reader that has waited longest, so that no reader waits
for ever.

Ordinary input does not wait. While no reader waits, a read is parsed at once, as long as such reads
have taken less than half of the time lately. A small read of a connection that has used little time
lately is parsed at once also while others wait, as long as these reads have taken less than a
quarter.

The clock is that of the wall: what a bystander waits for includes the time in which the processor
or the interpreter lock is another's, and to read the clock of a thread can take as long as to parse
a small message.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable

from continuo.realtime.server.hardening.waiting_readers import Reader, WaitingReaders

TURN_S = 0.0005
"""Time of a turn in seconds; it ends with the slice in which it reaches this."""
NEW_CONNECTION_S = 0.0005
"""Time that the turn of a new connection counts at least: its work begins after its turn. A head
that is refused takes 0.2 ms, an upgrade 0.4 ms."""
ROUND_S = 0.0005
"""Time of the turns of a round in seconds, without that of the reader that has waited longest."""
AT_ONCE_S = 0.001
"""The longest that reads are parsed at once, in seconds, and the longest that small reads of light
connections are."""
PAUSE_RATIO = 2
"""Time between two rounds, as a multiple of what the first one and the work it began have taken."""
SHARE_AT_ONCE = 0.5
"""Share of the time in which reads may be parsed at once while no reader waits, on average."""
SHARE_OF_LIGHT = 0.25
"""Share of the time in which small reads of light connections may be parsed at once, on
average."""
ITERATIONS_PER_ROUND = 3
"""Iterations of the event loop over which a round is measured: the application begins with a
request in the second one after its turn."""
IDLE_S_MAX = 50e-6
"""Time of an iteration of the event loop without work."""
SMALL_READ_BYTES = 2048
"""Maximum unread bytes of a reader that need not wait while others do."""


class ReadTurns:
    """The readers of one server process that wait for a turn. `clock`: time in seconds."""

    def __init__(
        self,
        turn_s: float = TURN_S,
        round_s: float = ROUND_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turn_s = turn_s
        self._round_s = round_s
        self._clock = clock
        self._waiting = WaitingReaders()
        self._scheduled = False
        self._at_once = _TimeBucket(AT_ONCE_S, SHARE_AT_ONCE, clock)
        self._of_light = _TimeBucket(AT_ONCE_S, SHARE_OF_LIGHT, clock)
        self._context = contextvars.Context()
        """Context of rounds: one that is begun by a request must not run in the request's."""

    def submit(self, reader: Reader, least_s: float = 0.0) -> None:
        """Let a reader parse its unread bytes: at once, or when its turn is granted. No effect if
        it waits already. `least_s`: seconds that its turn counts at least, for the work that it
        begins."""
        if reader in self._waiting:
            return
        bucket = self._find_bucket(reader)
        if bucket is not None:
            bucket.left_s -= self._take_turn(reader, least_s)
        else:
            self._add(reader, least_s)

    async def wait(self, waiting_bytes: int, owner: object) -> None:
        """Wait until a turn is granted to the caller. `waiting_bytes`: size of its input. `owner`:
        as of a reader."""
        turn = _ApplicationTurn(waiting_bytes, owner)
        self._add(turn, self.turn_s)
        try:
            await turn.granted
        finally:
            self.withdraw(turn)

    def withdraw(self, reader: Reader) -> None:
        """Grant no turn to a reader. No effect if it does not wait."""
        if reader in self._waiting:
            self._waiting.remove(reader)

    def _find_bucket(self, reader: Reader) -> "_TimeBucket | None":
        """Return a bucket with time in which the reader may parse at once; None if there is
        none."""
        if not self._waiting and self._at_once.has_time():
            return self._at_once
        if reader.unread_bytes > SMALL_READ_BYTES or not reader.is_light:
            return None
        return self._of_light if self._of_light.has_time() else None

    def _take_turn(self, reader: Reader, least_s: float) -> float:
        """Let a reader parse until its turn is over, and wait for the next one if it has not
        finished. Returns the time that the turn counts, in seconds."""
        began_s = self._clock()
        while has_more := reader.parse_slice():
            if self._clock() - began_s >= self.turn_s:
                break
        used_s = self._clock() - began_s
        reader.spend(used_s)
        if has_more:
            self._add(reader, 0.0)
        return max(used_s, least_s)

    def _add(self, reader: Reader, least_s: float) -> None:
        if reader in self._waiting:
            return
        self._waiting.add(reader, least_s)
        if not self._scheduled:
            self._scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._run_round, context=self._context)

    def _is_new_connection_next(self) -> bool:
        oldest = self._waiting.oldest()
        if oldest is None or not oldest.is_light:
            return False
        return self._waiting.least_s(oldest) >= NEW_CONNECTION_S

    def _run_round(self) -> None:
        reader: Reader | None = None
        oldest = self._waiting.oldest()
        self._scheduled = oldest is not None
        began_s, used_s = self._clock(), 0.0
        try:
            while used_s < self._round_s and (reader := self._waiting.next()) is not None:
                used_s += self._grant(reader)
                if reader is oldest:
                    oldest = None
            if oldest is not None and oldest in self._waiting:
                reader = oldest
                self._grant(reader)
        except Exception:
            if reader is not None:
                reader.abort()
            raise
        finally:
            if self._scheduled:
                self._end_round(began_s, ITERATIONS_PER_ROUND)

    def _grant(self, reader: Reader) -> float:
        """Grant a turn to a reader that waits. Returns the time that it counts, in seconds."""
        least_s = self._waiting.remove(reader)
        reader.begin_turn()
        return self._take_turn(reader, least_s)

    def _end_round(self, began_s: float, iterations: int) -> None:
        """Run the next round after these iterations, and PAUSE_RATIO times what they have taken."""
        loop, now_s = asyncio.get_running_loop(), self._clock()
        if iterations:
            loop.call_soon(self._end_round, began_s, iterations - 1, context=self._context)
        else:
            self._pause(now_s + PAUSE_RATIO * (now_s - began_s))

    def _pause(self, due_s: float, last_s: float | None = None) -> None:
        """Run the next round at `due_s`; or, for a new connection, when an iteration of the event
        loop had no other work. `last_s`: when the iteration began."""
        loop, now_s = asyncio.get_running_loop(), self._clock()
        if not self._is_new_connection_next():
            loop.call_later(due_s - now_s, self._run_round, context=self._context)
        elif now_s >= due_s or (last_s is not None and now_s - last_s < IDLE_S_MAX):
            self._run_round()
        else:
            loop.call_soon(self._pause, due_s, now_s, context=self._context)


class _TimeBucket:
    """Token bucket of time: `share` of the time that passes, and at most `most_s` at once."""

    def __init__(self, most_s: float, share: float, clock: Callable[[], float]) -> None:
        self.left_s = most_s
        self._most_s = most_s
        self._share = share
        self._clock = clock
        self._refilled_s = clock()

    def has_time(self) -> bool:
        now_s = self._clock()
        refill_s = (now_s - self._refilled_s) * self._share
        self.left_s, self._refilled_s = min(self._most_s, self.left_s + refill_s), now_s
        return self.left_s > 0


class _ApplicationTurn:
    """The turn of an application that has input to handle."""

    def __init__(self, waiting_bytes: int, owner: object) -> None:
        self.unread_bytes = waiting_bytes
        self.owner = owner
        self.is_light = False
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def parse_slice(self) -> bool:
        if not self.granted.done():
            self.granted.set_result(None)
        return False

    def begin_turn(self) -> None:
        """No effect: the turn begins when the application continues."""

    def abort(self) -> None:
        """No effect: it cannot fail."""

    def spend(self, seconds: float) -> None:
        """No effect: the turn takes no time before the application continues."""

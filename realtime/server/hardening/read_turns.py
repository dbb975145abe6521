"""Read turns: a limit on the time that the event loop spends on input before other work.

What a byte costs is the peer's choice: 256 KiB, one read, take 0.2 ms as one message and 0.3 s as
43,000 pings. So input is not counted but timed. A connection's unread bytes wait in the connection,
and a reader parses them slice by slice in turns of TURN_S. Turns are granted in rounds of ROUND_S;
after a round, the next one is delayed by twice the time that the round and the work it began have
taken. A small request needs about ten iterations of the event loop, and would otherwise wait for a
round in each. In a round, the reader that has waited longest comes first, then those with the
fewest unread bytes: a client that sends little does not wait behind those that send much, and they
do not wait for ever.

Ordinary input does not wait: while no reader waits, a read is parsed at once, as long as such reads
have taken less than half of the time lately; and a small read of a connection that has used little
time lately also while others wait, as long as these reads have taken less than a quarter.

The clock is that of the wall: what a bystander waits for includes the time in which the processor
or the interpreter lock is another's, and to read the clock of a thread can take as long as to parse
a small message.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Protocol

TURN_S = 0.001
"""Time of a turn in seconds; it ends with the slice in which it reaches this."""
ROUND_S = 0.002
"""Time of the turns of a round in seconds, and the longest that reads are parsed at once."""
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
_CLASS_BITS = 3
"""A class of readers by size has unread bytes of this many bit lengths: a factor of 8."""
_CLASSES = 11


class Reader(Protocol):
    """A connection with unread bytes."""

    @property
    def unread_bytes(self) -> int: ...

    @property
    def is_light(self) -> bool:
        """Whether the connection has used little time lately."""
        ...

    def parse_slice(self) -> bool:
        """Parse one slice of the unread bytes. Returns whether another one can be parsed."""
        ...

    def begin_turn(self) -> None:
        """Note that a turn was granted in a round."""
        ...

    def spend(self, seconds: float) -> None:
        """Charge the time of a turn."""
        ...

    def abort(self) -> None:
        """Close the connection after a fault of its parser."""
        ...


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
        self._waiting: dict[Reader, int] = {}
        """Class of each reader that waits, the oldest first."""
        self._classes: list[dict[Reader, float]] = [{} for _ in range(_CLASSES)]
        """The readers of each class, the oldest first, with the least time of their turn."""
        self._scheduled = False
        self._at_once = _TimeBucket(round_s, SHARE_AT_ONCE, clock)
        self._of_light = _TimeBucket(round_s, SHARE_OF_LIGHT, clock)
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

    async def wait(self, waiting_bytes: int) -> None:
        """Wait until a turn is granted to the caller. `waiting_bytes`: size of its input."""
        turn = _ApplicationTurn(waiting_bytes)
        self._add(turn, self.turn_s)
        try:
            await turn.granted
        finally:
            self.withdraw(turn)

    def withdraw(self, reader: Reader) -> None:
        """Grant no turn to a reader. No effect if it does not wait."""
        if reader in self._waiting:
            self._remove(reader)

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
        bits = reader.unread_bytes.bit_length()
        size_class = min(-(-bits // _CLASS_BITS), _CLASSES - 1)
        self._waiting[reader] = size_class
        self._classes[size_class][reader] = least_s
        if not self._scheduled:
            self._scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._run_round, context=self._context)

    def _remove(self, reader: Reader) -> float:
        return self._classes[self._waiting.pop(reader)].pop(reader)

    def _smallest(self) -> Reader | None:
        return next((next(iter(readers)) for readers in self._classes if readers), None)

    def _is_new_connection_next(self) -> bool:
        reader = next(iter(self._waiting), None)
        if reader is None:
            return False
        least_s = self._classes[self._waiting[reader]][reader]
        return least_s >= self.turn_s and reader.is_light

    def _run_round(self) -> None:
        reader = next(iter(self._waiting), None)
        self._scheduled = reader is not None
        began_s, used_s = self._clock(), 0.0
        try:
            while reader is not None and used_s < self._round_s:
                least_s = self._remove(reader)
                reader.begin_turn()
                used_s += self._take_turn(reader, least_s)
                reader = self._smallest()
        except Exception:
            if reader is not None:
                reader.abort()
            raise
        finally:
            if self._scheduled:
                self._end_round(began_s, ITERATIONS_PER_ROUND)

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

    def __init__(self, waiting_bytes: int) -> None:
        self.unread_bytes = waiting_bytes
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

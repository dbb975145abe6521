"""Read turns: a limit on the time that the event loop spends on input before other work.

What a byte costs is the peer's choice: 256 KiB, one read, take 0.2 ms as one message and 0.3 s as
43,000 pings. So input is not counted but timed. A connection's unread bytes wait in the connection,
and a reader parses them slice by slice in turns of TURN_S, in rounds of ROUND_S.

A tenant's connection that has used little time lately (`LoopAccount.is_light`), such as one that
sends audio as it is spoken, never waits behind a flood: while such readers wait, a round of them
runs in each iteration of the event loop. Other readers share what is left. After a round of theirs
the next one is delayed by twice the time that the round and the work it began have taken: a small
request needs two or three iterations of the event loop, and would otherwise wait for a round in
each. Among them those with few unread bytes come first. Among readers of the same kind with about
as many bytes, tenants take turns (`waiting_readers`), so that no client waits behind hundreds of
another tenant or without a key. A round of the others ends with a turn of the reader that has
waited longest, so that no reader waits for ever.

Ordinary input does not wait: a read is parsed at once while no reader waits, or if its connection
has used little time lately, as long as such reads have taken less than a quarter of the time.

The clock is that of the wall: what a bystander waits for includes the time in which the processor
or the interpreter lock is another's, and to read the clock of a thread can take as long as to parse
a small message.
"""

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable

from continuo.engine import LineLimit
from continuo.realtime import metrics
from continuo.realtime.server.hardening.waiting_readers import LIGHT, Reader, WaitingReaders
from continuo.realtime.tenants.time_bucket import TimeBucket

log = logging.getLogger(__name__)

TURN_S = 0.0005
"""Time of a turn in seconds; it ends with the slice in which it reaches this."""
NEW_CONNECTION_S = 0.0005
"""Time that the turn of a new connection counts at least: its work begins after its turn. A head
that is refused takes 0.2 ms, an upgrade 0.4 ms."""
ROUND_S = 0.0005
"""Time of the turns of a round in seconds, without that of the reader that has waited longest."""
AT_ONCE_S = 0.001
"""The longest that reads are parsed at once, in seconds."""
SHARE_AT_ONCE = 0.25
"""Share of the time in which reads may be parsed at once, on average."""
PAUSE_RATIO = 2
"""Time between two rounds of readers that are not light, as a multiple of what the first one and
the work it began have taken."""
ITERATIONS_PER_ROUND = 3
"""Iterations of the event loop over which a round is measured: the application begins with a
request in the second one after its turn."""
IDLE_S_MAX = 50e-6
"""Time of an iteration of the event loop without work."""
LATE_S = 1.0
"""A wait of a light reader for its turn that is longer is logged."""


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
        self._next_round: asyncio.Handle | None = None
        self._due_s = 0.0
        """When a round of readers that are not light may begin; infinite while the last one and the
        work it began are measured."""
        self._at_once = TimeBucket(SHARE_AT_ONCE, AT_ONCE_S, clock)
        self._line_limit = LineLimit(clock, lines_per_minute=1)
        self._context = contextvars.Context()
        """Context of rounds: one that is begun by a request must not run in the request's."""

    def submit(self, reader: Reader, least_s: float = 0.0) -> None:
        """Let a reader parse its unread bytes: at once, or when its turn is granted. No effect if
        it waits already. `least_s`: seconds that its turn counts at least, for the work that it
        begins."""
        if reader in self._waiting:
            return
        if (not self._waiting or reader.is_light) and self._at_once.has_time():
            self._at_once.take(self._take_turn(reader, least_s))
        else:
            self._add(reader, least_s)

    def withdraw(self, reader: Reader) -> None:
        """Grant no turn to a reader. No effect if it does not wait."""
        if reader in self._waiting:
            self._waiting.remove(reader)

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
        is_first = not self._waiting.has_light
        self._waiting.add(reader, least_s, self._clock())
        if self._next_round is None or (is_first and self._waiting.has_light):
            self._schedule()

    def _schedule(self) -> None:
        """Schedule the next round: in the next iteration of the event loop while a light reader
        waits, else when it is due. For a new connection, it is due once the event loop has no other
        work."""
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None
        loop, now_s = asyncio.get_running_loop(), self._clock()
        if self._waiting.has_light or (self._waiting and self._due_s <= now_s):
            self._next_round = loop.call_soon(self._run_round, context=self._context)
        elif not self._waiting or self._due_s == math.inf:
            return  # or scheduled once the last round is measured
        elif self._waiting.is_new_first(NEW_CONNECTION_S):
            self._next_round = loop.call_soon(self._run_if_idle, now_s, context=self._context)
        else:
            delay_s = self._due_s - now_s
            self._next_round = loop.call_later(delay_s, self._run_due, context=self._context)

    def _run_if_idle(self, last_s: float) -> None:
        """Run a round if nothing else was to do since `last_s`, in the iteration before."""
        if self._clock() - last_s < IDLE_S_MAX:
            self._run_due()
        else:
            self._schedule()

    def _run_due(self) -> None:
        self._due_s = 0.0
        self._run_round()

    def _run_round(self) -> None:
        self._next_round = None
        reader: Reader | None = None
        began_s, used_s = self._clock(), 0.0
        is_due = self._waiting.has_others and self._due_s <= began_s
        oldest = self._waiting.oldest() if is_due else None
        try:
            while used_s < self._round_s and (is_due or self._waiting.has_light):
                if (reader := self._waiting.next()) is None:
                    break
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
            if is_due:
                self._due_s = math.inf
                self._measure(began_s, ITERATIONS_PER_ROUND)
            self._schedule()

    def _grant(self, reader: Reader) -> float:
        """Grant a turn to a reader that waits. Returns the time that it counts, in seconds."""
        place = self._waiting.remove(reader)
        if place.size_class == LIGHT:
            self._note_wait(self._clock() - place.began_s)
        return self._take_turn(reader, place.least_s)

    def _note_wait(self, waited_s: float) -> None:
        """Count the wait of a tenant's light reader, and log it if it was long."""
        metrics.input_wait_seconds.observe(waited_s)
        if waited_s > LATE_S and self._line_limit.admit("late input") is not None:
            log.warning("input of a client within its share has waited %.1f s", waited_s)

    def _measure(self, began_s: float, iterations: int) -> None:
        """Measure a round and these iterations after it, and delay the next one by PAUSE_RATIO
        times what they have taken."""
        if iterations:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._measure, began_s, iterations - 1, context=self._context)
        else:
            now_s = self._clock()
            self._due_s = now_s + PAUSE_RATIO * (now_s - began_s)
            if self._next_round is None:
                self._schedule()

"""Throws frames at a server on a real port, in this process, and sees how it takes them.

After each throw the door says whether it is usable still, or was rightly closed; nothing is logged
as an error, no error is called the server's, no round of the event loop takes over STALL_S_MAX of
processor time, and no thread holds the interpreter lock for longer. In the end nothing is left
open.
"""

import asyncio
import gc
import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.fuzz.corpus_responses import BODIES, CHATS
from tests.fuzz.doors import Door, Tally, Thrown
from tests.fuzz.http_door import Posts
from tests.fuzz.realtime_door import JSON, MSGPACK, Events, Wire
from tests.fuzz.responses_door import Lanes
from tests.fuzz.stalls import LockStalls, Stalls

STALL_S_MAX = 0.050
LOCK_TRIES = 4


class Found(NamedTuple):
    seed: int
    what: str
    frames: Sequence[Thrown]
    door: Door


class Errors(logging.Handler):
    """What was logged as an error, or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.seen.append(logging.Formatter().format(record))


class Fuzzer:
    def __init__(self, port: int) -> None:
        self.tally = Tally()
        self.realtime = Events(port, self.tally, JSON)
        self.msgpack = Events(port, self.tally, MSGPACK)
        self.wire = Wire(port, self.tally)
        self.lanes = Lanes(port, self.tally)
        self.responses = Posts(port, self.tally, "/v1/responses", BODIES)
        self.chats = Posts(port, self.tally, "/v1/chat/completions", CHATS)
        self._errors = Errors()
        self._stalls = Stalls()
        self._lock_stalls = LockStalls()
        self.thrown = 0
        self.longest_s = 0.0
        self.longest_lock_s = 0.0

    def __enter__(self) -> "Fuzzer":
        logging.getLogger().addHandler(self._errors)
        asyncio.get_running_loop().set_exception_handler(self._faulted)
        gc.collect()
        gc.freeze()
        self._stalls.__enter__()
        self._lock_stalls.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stalls.__exit__()
        self._lock_stalls.__exit__()
        gc.unfreeze()
        asyncio.get_running_loop().set_exception_handler(None)
        logging.getLogger().removeHandler(self._errors)

    async def round(self, seed: int) -> Found | None:
        """One connection's worth; the same frames for the same seed."""
        source = random.Random(seed)
        doors: dict[Door, int] = {
            self.realtime: 8,
            self.msgpack: 4,
            self.wire: 2,
            self.lanes: 6,
            self.responses: 3,
            self.chats: 3,
        }
        (door,) = source.choices(list(doors), list(doors.values()))
        return await self.throw(door, door.spoilt(source), seed)

    async def throw(self, door: Door, thrown: Sequence[Thrown], seed: int = -1) -> Found | None:
        packed = door.packed(thrown)
        wrong = await self._wrong(door, packed, seed)
        self.thrown += len(thrown)
        locked_s = self._lock_stalls.take()
        for _ in range(LOCK_TRIES):
            # A thread may also wait while many others take the lock in turn. What one call does, it
            # does each time.
            if wrong is not None or locked_s <= STALL_S_MAX:
                break
            wrong = await self._wrong(door, packed, seed)
            locked_s = min(locked_s, self._lock_stalls.take())
        self.longest_lock_s = max(self.longest_lock_s, locked_s)
        if wrong is None and locked_s > STALL_S_MAX:
            wrong = f"the interpreter lock was held for {locked_s * 1e3:.0f} ms"
        return None if wrong is None else Found(seed, wrong, thrown, door)

    async def _wrong(self, door: Door, packed: Sequence[bytes], seed: int) -> str | None:
        """What was wrong with how they were taken."""
        await asyncio.sleep(0)
        self._stalls.take()  # that was our own time
        self._lock_stalls.take()
        wrong = await door.throw(packed, bool(seed % 2))
        stalled_s = self._stalls.take()
        self.longest_s = max(self.longest_s, stalled_s)
        if self._errors.seen:
            wrong = "\n".join(self._errors.seen)
            self._errors.seen.clear()
        elif wrong is None and stalled_s > STALL_S_MAX:
            wrong = f"the event loop stood still for {stalled_s * 1e3:.0f} ms"
        return wrong

    def _faulted(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._errors.seen.append(f"{context.get('message')}: {context.get('exception')!r}")


async def shrink(fuzzer: Fuzzer, found: Found) -> Found:
    """The same fault from fewer frames, where single ones or the last ones show it."""
    thrown = list(found.frames)
    while len(thrown) > 1:
        for part in (thrown[len(thrown) // 2 :], thrown[: len(thrown) // 2]):
            again = await fuzzer.throw(found.door, part, found.seed)
            if again is not None:
                thrown, found = part, again
                break
        else:
            return found
    return found

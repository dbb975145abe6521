"""The fuzzer: sends mutated frames to a server on a real port, in this process.

After each connection the endpoint checks that the connection is usable or was rightly closed. The
server logs no error and sends no server error, no round of the event loop takes over STALL_S_MAX
of CPU time, and no thread holds the interpreter lock for longer. At the end no session is open.
"""

import asyncio
import gc
import logging
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.fuzz.corpus_responses import BODIES, CHATS
from tests.fuzz.endpoints import Endpoint, Payload, Tally
from tests.fuzz.http_endpoint import PostRequests
from tests.fuzz.realtime_endpoint import RealtimeEvents, WebSocketBytes
from tests.fuzz.responses_endpoint import ResponsesSocket
from tests.fuzz.stalls import LockStalls, Stalls

STALL_S_MAX = 0.050
STALL_TRIES = 10


class Fault(NamedTuple):
    seed: int
    problem: str
    payloads: Sequence[Payload]
    endpoint: Endpoint


class _StallTimes(NamedTuple):
    """The longest stall by a callback of the event loop, and by the interpreter lock."""

    loop_s: float
    lock_s: float


class ErrorRecorder(logging.Handler):
    """Log records of level ERROR or above, or with an exception."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.messages.append(logging.Formatter().format(record))


class Fuzzer:
    def __init__(self, port: int, stall_s_max: float = STALL_S_MAX) -> None:
        self.tally = Tally()
        self.realtime = RealtimeEvents(port, self.tally)
        self.wire = WebSocketBytes(port, self.tally)
        self.responses_socket = ResponsesSocket(port, self.tally)
        self.responses = PostRequests(port, self.tally, "/v1/responses", BODIES)
        self.chats = PostRequests(port, self.tally, "/v1/chat/completions", CHATS)
        self._errors = ErrorRecorder()
        self._stalls = Stalls()
        self._lock_stalls = LockStalls()
        self._stall_s_max = stall_s_max
        self.sent = 0
        self.longest_s = 0.0
        self.longest_lock_s = 0.0

    def __enter__(self) -> "Fuzzer":
        logging.getLogger().addHandler(self._errors)
        asyncio.get_running_loop().set_exception_handler(self._record_exception)
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

    async def round(self, seed: int) -> Fault | None:
        """Send the payloads of one connection; the same seed sends the same ones."""
        source = random.Random(seed)
        weights: dict[Endpoint, int] = {
            self.realtime: 12,
            self.wire: 2,
            self.responses_socket: 6,
            self.responses: 3,
            self.chats: 3,
        }
        (endpoint,) = source.choices(list(weights), list(weights.values()))
        return await self.send(endpoint, endpoint.generate(source), seed)

    async def send(
        self, endpoint: Endpoint, payloads: Sequence[Payload], seed: int = -1
    ) -> Fault | None:
        encoded = endpoint.encode(payloads)
        self.sent += len(payloads)
        stalls = _StallTimes(math.inf, math.inf)
        for _ in range(STALL_TRIES):
            # Another process slows the processor that this one shares a core with, and a thread may
            # wait while many others take the lock in turn. A stall by one call recurs each time.
            problem, measured = await self._send_once(endpoint, encoded, seed)
            stalls = _StallTimes(*map(min, stalls, measured))
            if problem is not None or max(stalls) <= self._stall_s_max:
                break
        self.longest_s = max(self.longest_s, stalls.loop_s)
        self.longest_lock_s = max(self.longest_lock_s, stalls.lock_s)
        if problem is None and stalls.loop_s > self._stall_s_max:
            problem = f"the event loop was blocked for {stalls.loop_s * 1e3:.0f} ms"
        elif problem is None and stalls.lock_s > self._stall_s_max:
            problem = f"the interpreter lock was held for {stalls.lock_s * 1e3:.0f} ms"
        return None if problem is None else Fault(seed, problem, payloads, endpoint)

    async def _send_once(
        self, endpoint: Endpoint, encoded: Sequence[bytes], seed: int
    ) -> tuple[str | None, "_StallTimes"]:
        """Send the frames once. Returns the problem, if any, and the longest stalls."""
        await asyncio.sleep(0)
        self._stalls.take()  # discard the time of the fuzzer itself
        self._lock_stalls.take()
        problem = await endpoint.send(encoded, bool(seed % 2))
        if self._errors.messages:
            problem = "\n".join(self._errors.messages)
            self._errors.messages.clear()
        return problem, _StallTimes(self._stalls.take(), self._lock_stalls.take())

    def _record_exception(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, object]
    ) -> None:
        self._errors.messages.append(f"{context.get('message')}: {context.get('exception')!r}")


async def shrink(fuzzer: Fuzzer, fault: Fault) -> Fault:
    """Reproduce the fault with fewer payloads, if one half of them suffices."""
    payloads = list(fault.payloads)
    while len(payloads) > 1:
        for part in (payloads[len(payloads) // 2 :], payloads[: len(payloads) // 2]):
            smaller = await fuzzer.send(fault.endpoint, part, fault.seed)
            if smaller is not None:
                payloads, fault = part, smaller
                break
        else:
            return fault
    return fault

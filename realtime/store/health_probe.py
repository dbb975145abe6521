"""Health of a store: the outcome of its last write.

    healthy ──── a call is refused, or times out ──────▶ unhealthy, with its cause
       ▲                                                        │ a probe every UNHEALTHY_INTERVAL_S
       └──────────────── a probe has written ───────────────────┘

A probe writes as calls do, so that a store that responds but refuses writes counts as unhealthy. A
healthy store is probed too, every HEALTHY_INTERVAL_S, so that a failure is detected even while no
session writes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
"""Time limit of a probe, which fails after it: a disk may hang, just as a network may."""
STALL_S = 0.1
"""Delay of a timer by which the event loop counts as having stood still."""
UNHEALTHY_INTERVAL_S = 0.1
"""Pause between two probes of an unhealthy store."""
HEALTHY_INTERVAL_S = 5.0
"""Pause between two probes of a healthy store, so that its reported health is never much older."""


class HealthProbe:
    """Health probe and circuit breaker of a store. Logs one line per change between healthy and
    unhealthy, however many calls fail."""

    def __init__(self, store_name: str, probe: Callable[[], Awaitable[None]]) -> None:
        """`store_name` appears in log lines. `probe` writes to the store; it takes a bounded time,
        and raises if the write fails."""
        self.is_circuit_open = False
        """Whether a call has timed out; calls then fail fast until a probe succeeds."""
        self.cause: str | None = None
        """Why the last write failed; None while the store is healthy."""
        self._store_name = store_name
        self._probe = probe
        self._unhealthy_since_s = 0.0
        self._recovering: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_healthy(self) -> bool:
        """Whether the store accepts writes, as far as is known."""
        return self.cause is None

    def start(self) -> None:
        """Start to probe the store at intervals, from now until `aclose`."""
        self._watching = asyncio.create_task(self._probe_while_healthy(), name="health probe")

    def report_failure(self, cause: str, *, is_timeout: bool = False) -> None:
        """Record that a call has failed, which starts probes every UNHEALTHY_INTERVAL_S.
        `is_timeout`: whether the call timed out, which opens the circuit."""
        if self._is_closed:
            return
        self.is_circuit_open = is_timeout
        if self.cause is None:
            log.warning("%s cannot be written: %s", self._store_name, cause)
            self._unhealthy_since_s = time.monotonic()
            self._recovering = asyncio.create_task(
                self._probe_until_healthy(), name="health probe of an unhealthy store"
            )
        self.cause = cause

    async def _probe_while_healthy(self) -> None:
        while True:
            if self.is_healthy:
                await self._run_probe()
            await asyncio.sleep(HEALTHY_INTERVAL_S)

    async def _probe_until_healthy(self) -> None:
        while not await self._run_probe():
            await asyncio.sleep(UNHEALTHY_INTERVAL_S)
        self.cause, self.is_circuit_open = None, False
        down_s = time.monotonic() - self._unhealthy_since_s
        log.warning("%s can be written again, after %.1f s", self._store_name, down_s)

    async def _run_probe(self) -> bool:
        probe = asyncio.ensure_future(self._probe())
        try:
            if not await _ends_in_time(probe):
                self.report_failure(
                    f"a write has not ended within {PROBE_TIMEOUT_S:g} s",
                    is_timeout=self.is_circuit_open,
                )
                return False
            await probe
        except Exception as error:  # noqa: BLE001 - a probe that fails in any way has failed
            if self.is_healthy:
                self.report_failure(str(error) or type(error).__name__)
            return False
        finally:
            probe.cancel()
        return True

    async def aclose(self) -> None:
        self._is_closed = True
        tasks = [task for task in (self._watching, self._recovering) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._probe = _succeed  # in place of a method of the store, which refers to this object


async def _ends_in_time(probe: "asyncio.Future[None]") -> bool:
    """Wait until a probe has ended, at most PROBE_TIMEOUT_S. Time in which the event loop did not
    run, and so could not learn that the write had ended, does not count."""
    began_s = time.monotonic()
    await asyncio.wait({probe}, timeout=PROBE_TIMEOUT_S)
    is_late = time.monotonic() - began_s > PROBE_TIMEOUT_S + STALL_S
    if not probe.done() and is_late:
        await asyncio.wait({probe}, timeout=PROBE_TIMEOUT_S)
    return probe.done()


async def _succeed() -> None:
    pass

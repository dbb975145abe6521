"""Loop: one step after another.  receive → plan → launch → publish → collect.

One event loop drives the engine; when nothing is owed it sleeps. What a step has said is sent
while the device works: at once if another step is there, else when the next one has begun. Up to
`steps_ahead` steps are launched, on a thread beside it, beyond the one whose answer is awaited.
Where there are none (on a CPU) this thread works at each step itself, since to wait for another
one costs more than all the Python of a small step; where others work with it, it leaves the end of
a step to them, and plans the next one meanwhile. Effects on sequences are taken at collect.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, cast

from continuo.engine.batch import (
    Batch,
    BatchResult,
    BatchRow,
    DeviceLost,
    RowResult,
    Runner,
    TicketT,
)
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.schedule import ScheduledRow, Scheduler, StepLoad
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.sessions import Sessions
from continuo.engine.core.turn import Turn
from continuo.engine.wire.flight_recorder import FlightRecorder, compute_recorder_bytes
from continuo.engine.wire.messages import EngineEvent, LoopCommand, TokenLogprobs, TurnTokens

log = logging.getLogger(__name__)

AUDIT_EVERY_S = 60.0
"""How often an idle engine proves its books."""


SendEvents = Callable[[list[EngineEvent]], None]


class PreparedStep(NamedTuple):
    """A step as it goes to the device, and what each row of it is for."""

    batch: Batch
    rows: list[ScheduledRow]
    load: StepLoad

    @property
    def kv_ends(self) -> dict[Sequence, int]:
        """The position up to which each row brings the KV of its sequence."""
        rows = zip(self.rows, self.batch.rows, strict=True)
        return {work.sequence: row.start + row.count for work, row in rows}


class InFlightStep(NamedTuple):
    """A step on the device."""

    step: PreparedStep
    ticket: object
    """The runner's; where steps run ahead, its future. An Exception: it could not be launched."""


class EngineLoop(Generic[TicketT]):
    def __init__(
        self,
        runner: Runner[TicketT],
        cache: SessionAwareCache,
        scheduler: Scheduler,
        counters: Counters,
        recorder: FlightRecorder | None = None,
        *,
        audit_every_step: bool = False,
    ) -> None:
        """`recorder`: where the rows in flight are written for whoever finds this process dead."""
        self._runner = runner
        self._cache = cache
        self._scheduler = scheduler
        self._counters = counters
        self._recorder = recorder or FlightRecorder(
            bytearray(compute_recorder_bytes(scheduler.max_rows))
        )
        self._audit_every_step = audit_every_step
        self._has_device_thread = runner.geometry.steps_ahead > 0
        self._steps_ahead = max(runner.geometry.steps_ahead, 1)
        self._device_executor = ThreadPoolExecutor(1, "device")
        self._inbox: deque[LoopCommand] = deque()
        self._outbox: list[EngineEvent] = []
        self._wakeup = asyncio.Event()
        self._steps_in_flight: deque[InFlightStep] = deque()
        self._is_stopping = False
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._last_audit_s = time.monotonic()

    def enqueue(self, commands: list[LoopCommand]) -> None:
        """Commands from the link; they take effect at the next receive."""
        self._inbox.extend(commands)
        self._wakeup.set()

    def wake(self) -> None:
        """From any thread: there may be something to do."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._wakeup.set)

    def emit(self, event: EngineEvent) -> None:
        self._outbox.append(event)

    def stop(self) -> None:
        self._is_stopping = True
        self._wakeup.set()

    async def run(self, sessions: Sessions, send: SendEvents) -> None:
        """Until `stop`. Raises DeviceLost."""
        self._event_loop = asyncio.get_running_loop()
        while not self._is_stopping:
            if self._steps_in_flight and not self._has_device_thread:
                await self._run_until_near_end(sessions)
            self._apply_commands(sessions)
            launched = self._launch()
            send(self.take_events())
            if len(self._steps_in_flight) > self._steps_ahead or (
                self._steps_in_flight and not launched
            ):
                await self._collect(sessions)
                if self._steps_in_flight:
                    send(self.take_events())
            elif not launched:
                self._audit_idle()
                await self._sleep(sessions.expire_idle())
            if self._audit_every_step:
                self._cache.audit()
        while self._steps_in_flight:
            flight = self._steps_in_flight.popleft()
            await self._await_result(flight)
            self._recorder.end_step(flight.step.batch.number)
        send(self.take_events())
        self._event_loop = None
        self._device_executor.shutdown(wait=True, cancel_futures=True)

    # ---- the verbs of a step --------------------------------------------------------------

    def _apply_commands(self, sessions: Sessions) -> None:
        while self._inbox:
            sessions.apply(self._inbox.popleft())
        sessions.resume_prepared()
        sessions.expire_idle()

    def _launch(self) -> bool:
        """Hands the next step to the device. False: there was nothing to do, or a bad row is
        searched for, which takes one step at a time."""
        if self._steps_in_flight and self._scheduler.is_isolating_fault:
            return False
        order = self.prepare_step()
        if order is None:
            return False
        self._counters.begin_step(time.monotonic())
        ticket: object
        if self._has_device_thread:
            ticket = self._device_executor.submit(self._runner.launch, order.batch)
        else:
            try:
                ticket = self._runner.launch(order.batch)
            except Exception as error:
                ticket = error
        self._steps_in_flight.append(InFlightStep(order, ticket))
        return True

    def prepare_step(self) -> PreparedStep | None:
        """Plans a step and writes it down for the device. None: nothing is owed."""
        works, load = self._scheduler.plan()
        if not works:
            return None
        number = self._counters.steps
        self._counters.steps += 1
        self._recorder.begin_step(number, [work.sequence.session_hash for work in works])
        rows = [self._build_row(work, number, index) for index, work in enumerate(works)]
        return PreparedStep(Batch(number, rows, self._cache.take_moves()), works, load)

    def _build_row(self, scheduled: ScheduledRow, number: int, index: int) -> BatchRow:
        sequence, count, turn = scheduled
        lease = sequence.lease
        start = lease.launched - count
        feed = -1
        ids = sequence.ids[start : start + count]
        if not ids:
            fed_by, feed = sequence.last_feed
            assert fed_by == number - 1, "a promise nobody keeps"
        sample = None
        asked = sequence.turn
        if asked is not None and not asked.first_step_s:
            asked.first_step_s = time.monotonic()
        if turn is not None:
            sample = turn.next_sample()
            sequence.promised += 1
            sequence.last_feed = (number, index)
        return BatchRow(ids, feed, start, lease.pages, sample)

    async def _run_until_near_end(self, sessions: Sessions) -> None:
        """Works at the step in flight to its end, or until others do the rest; then lets in what is
        to be received before the next one is planned."""
        order, ticket = self._steps_in_flight[0]
        near = False
        if not isinstance(ticket, Exception):
            try:
                near = self._runner.run_until_near_end(cast(TicketT, ticket))
            except Exception as error:
                self._steps_in_flight[0] = InFlightStep(order, error)
        if not near:
            await self._collect(sessions)
        await asyncio.sleep(0)

    async def _collect(self, sessions: Sessions) -> None:
        """Waits for the oldest step in flight and takes its effects. If the device failed it, those
        behind it are lost too: they go on from what it has not written."""
        flight = self._steps_in_flight.popleft()
        sampled = await self._await_result(flight)
        if isinstance(sampled, Exception):
            behind = list(self._steps_in_flight)
            self._steps_in_flight.clear()
            self._counters.discard_steps()
            for other in behind:
                await self._await_result(other)
                self._recorder.end_step(other.step.batch.number)
            await self._check_device(sampled)
            self.apply_failure([each.step for each in (flight, *behind)], sampled, sessions)
        else:
            self.apply_result(flight.step, sampled, sessions)
            self._discard_unneeded_step(sessions)

    def _discard_unneeded_step(self, sessions: Sessions) -> None:
        """Where this thread works at the step in flight: not if all it is for has just ended."""
        if self._has_device_thread or not self._steps_in_flight:
            return
        order, ticket = self._steps_in_flight[0]
        if isinstance(ticket, Exception) or any(work.is_needed for work in order.rows):
            return
        self._steps_in_flight.popleft()
        self._counters.discard_steps()
        try:
            self._runner.discard(cast(TicketT, ticket))
        except Exception:  # nobody wanted it
            log.exception("step %d failed on the device", order.batch.number)
        self._recorder.end_step(order.batch.number)
        self._roll_back(order.rows)
        self._advance_idle(order.rows, sessions)

    async def _await_result(self, step: InFlightStep) -> BatchResult | Exception:
        try:
            if self._has_device_thread:
                return await asyncio.wrap_future(
                    self._device_executor.submit(self._collect_on_thread, step)
                )
            if isinstance(step.ticket, Exception):
                raise step.ticket
            return self._runner.collect(cast(TicketT, step.ticket))
        except Exception as error:
            log.exception("step %d failed on the device", step.step.batch.number)
            return error

    async def _check_device(self, error: Exception) -> None:
        """Raises DeviceLost where no step can be run any more: the turns go on in the engine that
        is started next."""
        if self._has_device_thread:
            works = await asyncio.wrap_future(self._device_executor.submit(self._runner.is_usable))
        else:
            works = self._runner.is_usable()
        if not works:
            raise DeviceLost(f"the device is lost: {type(error).__name__}: {error}") from error

    def apply_result(self, step: PreparedStep, sampled: BatchResult, sessions: Sessions) -> None:
        """A step is done: its effects on sequences, all of them and only here."""
        self._counters.end_step(
            sampled.model_s, time.monotonic() if self._steps_in_flight else None
        )
        self._scheduler.observe(step.load, sampled.model_s)
        for work, drawn in zip(step.rows, sampled.results, strict=True):
            self._apply_row(work, drawn, sessions)
        self._recorder.end_step(step.batch.number)

    def _collect_on_thread(self, step: InFlightStep) -> BatchResult:
        """On the device thread."""
        return self._runner.collect(cast("Future[Any]", step.ticket).result())

    def _apply_row(
        self, scheduled: ScheduledRow, drawn: RowResult | None, sessions: Sessions
    ) -> None:
        """KV of `count` tokens is written. Where the log was cut meanwhile, what lies beyond it is
        dropped, and so is an id drawn for a turn that has ended."""
        sequence, count, turn = scheduled
        lease = sequence.lease
        kept = min(max(len(sequence.ids) - lease.committed, 0), count)
        self._cache.commit(lease, count, kept)
        self._counters.tokens_computed += count
        if lease.committed > sequence.committed_high_water:
            sequence.committed_high_water = min(lease.committed, len(sequence.ids))
        if sequence.publish_to:
            sessions.publish_prompt(sequence)
        if turn is not None:
            sequence.promised -= 1
            if turn is sequence.turn:
                assert drawn is not None
                self._apply_drawn(sequence, turn, drawn, sessions)
        if not sequence.is_busy:
            sessions.advance_if_idle(sequence)

    def _apply_drawn(
        self, sequence: Sequence, turn: Turn, drawn: RowResult, sessions: Sessions
    ) -> None:
        """An id has come back for a running turn."""
        if drawn.failure is not None:
            sessions.end_turn(sequence, "failed", error=drawn.failure)
            return
        turn.first_id_s = turn.first_id_s or time.monotonic()
        sequence.ids.append(drawn.id)
        over = turn.accept(drawn.id)
        self._counters.tokens_drawn += 1
        logprobs = None
        if drawn.logprobs is not None:
            logprobs = [TokenLogprobs(drawn.logprobs.drawn, drawn.logprobs.top)]
        self.emit(TurnTokens(sequence.id, turn.id, turn.output_tokens - 1, [drawn.id], logprobs))
        if over is not None:
            sessions.end_turn(sequence, over)

    def apply_failure(
        self, steps: list[PreparedStep], error: Exception, sessions: Sessions
    ) -> None:
        """The device failed the first of these steps, and the others behind it are lost. All are
        planned again, the first in parts, until the row that fails alone is found: only its turn
        fails, and its session lives on. Where pages were to be moved, all KV is forgotten, because
        their content is undefined."""
        self._counters.failed_steps += len(steps)
        for order in steps:
            self._recorder.end_step(order.batch.number)
        works = [work for order in steps for work in order.rows]
        self._roll_back(works)
        culprit = self._scheduler.record_failure(steps[0].kv_ends)
        if culprit is not None:
            if culprit.turn is not None:
                sessions.end_turn(culprit, "failed", error=f"{type(error).__name__}: {error}")
            self._scheduler.remove(culprit)
        if any(order.batch.moves for order in steps):
            self._scheduler.reset_kv()
        self._advance_idle(works, sessions)

    def _roll_back(self, rows: list[ScheduledRow]) -> None:
        """None of it has been done."""
        for sequence, count, turn in rows:
            self._cache.commit(sequence.lease, count, 0)
            if turn is not None:
                sequence.promised -= 1
                turn.launched_tokens -= 1

    def _advance_idle(self, rows: list[ScheduledRow], sessions: Sessions) -> None:
        for sequence in dict.fromkeys(work.sequence for work in rows):
            sessions.advance_if_idle(sequence)

    # ---- between steps --------------------------------------------------------------------

    def take_events(self) -> list[EngineEvent]:
        events, self._outbox = self._outbox, []
        return events

    async def _sleep(self, timeout_s: float | None) -> None:
        """Until there is something to receive, or to expire, or to audit."""
        self._wakeup.clear()
        if self._inbox or self._outbox or self._is_stopping:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s or AUDIT_EVERY_S, AUDIT_EVERY_S)):
                await self._wakeup.wait()

    def _audit_idle(self) -> None:
        """Now and then, where nothing is owed and nothing in flight: nobody waits for it."""
        if time.monotonic() - self._last_audit_s <= AUDIT_EVERY_S:
            return
        self._last_audit_s = time.monotonic()
        try:
            self._cache.audit()
        except AssertionError:
            self._counters.failed_audits += 1
            log.exception("the page books do not balance")

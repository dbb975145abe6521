"""EngineLoop: runs one step after another.  receive → plan → launch → send → collect.

One asyncio event loop drives the engine; it sleeps when no sequence has tokens to compute. The
events of a step are sent while the device computes: at once if another step is in flight, else
after the next launch. Up to `steps_ahead` steps are launched, on a device thread, beyond the one
whose result is awaited. With `steps_ahead` 0 (on a CPU) this thread computes each step itself,
because switching threads costs more than all the Python code of a small step. If worker threads
take part, it leaves the end of a step to them and plans the next step meanwhile. Commands that
arrive while this thread computes a step which only prefills are applied at once, and the step is
discarded if a short turn begins. The effects of a step on its sequences are applied when it is
collected.
"""

import asyncio
import contextlib
import logging
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from operator import attrgetter
from typing import Any, Generic, cast

import msgspec

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
from continuo.engine.core.schedule import ScheduledRow, Scheduler, StepLoad, StepPlan
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.sessions import Sessions
from continuo.engine.core.speculation import Speculation
from continuo.engine.core.turn import Turn
from continuo.engine.wire.flight_recorder import FlightRecorder, compute_recorder_bytes
from continuo.engine.wire.messages import EngineEvent, LoopCommand, TokenLogprobs

log = logging.getLogger(__name__)

RECEIVE_EVERY_S = 0.005
"""Interval at which commands are received while this thread computes a step that only prefills, so
that a short turn that begins then need not wait for its end."""
DISCARD_GAIN_S_MIN = 0.008
"""Minimum expected seconds that a short turn need not wait if the step in flight is discarded."""
AUDIT_EVERY_S = 60.0
"""Interval between audits of an idle engine."""

SendEvents = Callable[[list[EngineEvent]], None]
_session_hash: Callable[[ScheduledRow], bytes] = attrgetter("sequence.session_hash")


class MisplacedRows(Exception):
    """A plan with two rows of a sequence, or with a row that does not begin where its KV ends: a
    defect of the scheduler."""

    def __init__(self, sequence: Sequence, start: int, tokens: int) -> None:
        super().__init__("the rows planned for the session would leave positions without KV")
        self.sequence = sequence
        self.span = start, start + tokens
        """Start and end of its first wrong row, as positions."""


class PreparedStep(msgspec.Struct, frozen=True):
    """A batch for the device, and the scheduled rows it was built from, in the same order."""

    batch: Batch
    rows: list[ScheduledRow]
    load: StepLoad
    discardable_s: float
    """See `StepPlan.discardable_s`."""
    refusal: MisplacedRows | None = None
    """Why the rows are not computed."""

    @property
    def kv_ends(self) -> dict[Sequence, int]:
        """Positions up to which the step extends KV, drafts left out, by sequence."""
        rows = zip(self.rows, self.batch.rows, strict=True)
        return {
            scheduled.sequence: row.start + row.count - len(scheduled.drafts)
            for scheduled, row in rows
        }


class InFlightStep(msgspec.Struct, frozen=True):
    """A step that was launched and is not collected yet."""

    step: PreparedStep
    ticket: object
    """Ticket that the runner returned; with a device thread, a Future of that ticket; the Exception
    if the launch failed."""


class EngineLoop(Generic[TicketT]):
    """The one loop of an engine process, which alone gives steps to the device.

    Owns the inbox of commands, the outbox of events and the steps in flight. `wake` may be called
    on any thread, all else only on that of the event loop. Always: steps are collected in the order
    of their launch; a command takes effect between two steps; and the events of a step are sent in
    the order in which they were emitted.
    """

    def __init__(
        self,
        runner: Runner[TicketT],
        cache: SessionAwareCache,
        scheduler: Scheduler,
        counters: Counters,
        recorder: FlightRecorder | None = None,
        *,
        speculation: Speculation | None = None,
        audit_every_step: bool = False,
    ) -> None:
        """Args:
        runner: the device; only the loop calls it, on the device thread if it runs steps ahead.
        cache: that of the scheduler, whose page moves go into each batch.
        scheduler: plans each step.
        counters: what the steps are counted in.
        recorder: keeps the rows in flight for the next engine process, in case this one crashes;
            None: they are not kept for it.
        speculation: that of the scheduler; None: no drafts.
        audit_every_step: whether the pages are audited after each step, and not only between turns.
        """
        self._runner = runner
        self._cache = cache
        self._scheduler = scheduler
        self._counters = counters
        self._recorder = recorder or FlightRecorder(
            bytearray(compute_recorder_bytes(scheduler.max_rows))
        )
        self._speculation = speculation
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
        """Queue commands; they take effect before the next step is planned."""
        self._inbox.extend(commands)
        self._wakeup.set()

    def wake(self) -> None:
        """Wake the loop. Thread-safe."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._wakeup.set)

    def emit(self, event: EngineEvent) -> None:
        self._outbox.append(event)

    def stop(self) -> None:
        self._is_stopping = True
        self._wakeup.set()

    async def run(self, sessions: Sessions[Sequence], send: SendEvents) -> None:
        """Run until `stop`. Sessions begin and end meanwhile, between two steps and while one is
        computed. Raises DeviceLost."""
        self._event_loop = asyncio.get_running_loop()
        while not self._is_stopping:
            if self._steps_in_flight and not self._has_device_thread:
                await self._run_until_near_end(sessions, send)
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
            in_flight = self._steps_in_flight.popleft()
            await self._await_result(in_flight)
            self._recorder.end_step(in_flight.step.batch.number)
        send(self.take_events())
        self._event_loop = None
        self._device_executor.shutdown(wait=True, cancel_futures=True)

    # ---- the phases of a step -------------------------------------------------------------

    def _apply_commands(self, sessions: Sessions[Sequence]) -> None:
        while self._inbox:
            sessions.apply(self._inbox.popleft())
        sessions.resume_prepared()
        sessions.expire_idle()

    def _launch(self) -> bool:
        """Launch the next step. Returns False if no rows can be planned, or if a step is in flight
        that was refused, or during the search for a faulty row."""
        if self._steps_in_flight and (
            self._scheduler.is_isolating_fault or self._steps_in_flight[-1].step.refusal
        ):
            return False
        step = self.prepare_step()
        if step is None:
            return False
        self._counters.begin_step(time.monotonic())
        ticket: object
        if step.refusal is not None:
            ticket = step.refusal
        elif self._has_device_thread:
            ticket = self._device_executor.submit(self._runner.launch, step.batch)
        else:
            try:
                ticket = self._runner.launch(step.batch)
            except Exception as error:  # noqa: BLE001 - a failed launch is logged at collect
                ticket = error
        self._steps_in_flight.append(InFlightStep(step, ticket))
        return True

    def prepare_step(self) -> PreparedStep | None:
        """Plan a step and build its batch. Returns None if no rows can be planned. A plan with
        misplaced rows is not built: its batch is empty, and it must not be launched."""
        plan = self._scheduler.plan()
        if not plan.rows:
            return None
        number = self._counters.steps
        self._counters.steps += 1
        self._recorder.begin_step(number, list(map(_session_hash, plan.rows)))
        rows: list[BatchRow] = []
        try:
            for row in plan.rows:
                rows.append(self._build_row(row, number, len(rows)))
        except MisplacedRows as error:
            return self._refuse_step(plan, number, len(rows), error)
        batch = Batch(number, rows, self._cache.take_moves())
        return PreparedStep(batch, plan.rows, plan.load, plan.discardable_s)

    def _refuse_step(
        self, plan: StepPlan, number: int, built: int, refusal: MisplacedRows
    ) -> PreparedStep:
        """Return a step of no rows, for a plan of which the first `built` rows were built."""
        unbuilt = [ScheduledRow(x.sequence, x.start, x.tokens, None) for x in plan.rows[built:]]
        planned = plan.rows[:built] + unbuilt
        batch = Batch(number, [], self._cache.take_moves())
        return PreparedStep(batch, planned, plan.load, 0.0, refusal)

    def _build_row(self, scheduled: ScheduledRow, number: int, index: int) -> BatchRow:
        sequence, start, count, turn, drafts = (
            scheduled.sequence,
            scheduled.start,
            scheduled.tokens,
            scheduled.turn,
            scheduled.drafts,
        )
        lease = sequence.lease
        if start != lease.committed + lease.reserved - count:
            raise MisplacedRows(sequence, start, count)
        feed_row = -1
        ids = sequence.ids[start : start + count]
        if drafts:
            ids += drafts
        elif not ids:
            feed_batch, feed_row = sequence.last_feed
            assert feed_batch == number - 1, "the promised id is not drawn by the previous step"
        sample = None
        running = sequence.turn
        if running is not None and not running.first_step_s:
            running.first_step_s = time.monotonic()
        if turn is not None:
            sample = turn.next_sample()
            sequence.promised += len(drafts) or 1
            sequence.last_feed = (number, index)
        if not self._cache.has_components:
            row = BatchRow(ids, feed_row, start, lease.pages, sample)
        else:
            memory = self._cache.components.row_memory(lease)
            row = BatchRow(ids, feed_row, start, lease.pages, sample, *memory)
        if not drafts or turn is None:
            return row
        return msgspec.structs.replace(row, draft_samples=turn.draft_samples(drafts))

    async def _run_until_near_end(self, sessions: Sessions[Sequence], send: SendEvents) -> None:
        """Compute the step in flight to its end, or until worker threads can finish it; then let
        the event loop receive commands before the next step is planned. A step that only prefills
        is discarded if a short turn begins early enough."""
        if await self._is_interrupted(sessions, send):
            self._discard_step(sessions)
            return
        in_flight = self._steps_in_flight[0]
        step, ticket = in_flight.step, in_flight.ticket
        is_near_end = False
        if not isinstance(ticket, Exception):
            try:
                is_near_end = self._runner.run_until_near_end(cast(TicketT, ticket))
            except Exception as error:  # noqa: BLE001 - a failed step is logged at collect
                self._steps_in_flight[0] = InFlightStep(step, error)
        if not is_near_end:
            await self._collect(sessions)
        await asyncio.sleep(0)

    async def _is_interrupted(self, sessions: Sessions[Sequence], send: SendEvents) -> bool:
        """Compute the step in flight as long as it may be discarded, and meanwhile apply the
        commands that arrive. Returns whether a short turn has begun."""
        discardable_s, started_s = self._steps_in_flight[0].step.discardable_s, time.monotonic()
        while time.monotonic() - started_s < discardable_s:
            if self._run_for_a_while() < DISCARD_GAIN_S_MIN:
                return False
            await asyncio.sleep(0)
            self._apply_commands(sessions)
            send(self.take_events())
            if self._scheduler.has_new_short_turn:
                self._scheduler.time.observe_discarded(time.monotonic() - started_s)
                return True
        return False

    def _run_for_a_while(self) -> float:
        """Compute the step in flight for RECEIVE_EVERY_S. Returns the seconds that the rest is
        expected to take; 0 if it is near its end, or has failed."""
        step, ticket = self._steps_in_flight[0].step, self._steps_in_flight[0].ticket
        if isinstance(ticket, Exception):
            return 0.0
        try:
            return self._runner.run_for(cast(TicketT, ticket), RECEIVE_EVERY_S)
        except Exception as error:  # noqa: BLE001 - a failed step is logged at collect
            self._steps_in_flight[0] = InFlightStep(step, error)
            return 0.0

    async def _collect(self, sessions: Sessions[Sequence]) -> None:
        """Wait for the oldest step in flight and apply its effects. If the step failed, the later
        steps are lost too, because they build on KV that it has not written."""
        oldest = self._steps_in_flight.popleft()
        result = await self._await_result(oldest)
        if isinstance(result, Exception):
            later = list(self._steps_in_flight)
            self._steps_in_flight.clear()
            self._counters.discard_steps()
            for other in later:
                await self._await_result(other)
                self._recorder.end_step(other.step.batch.number)
            await self._check_device(result)
            self.apply_failure([each.step for each in (oldest, *later)], result, sessions)
        else:
            self.apply_result(oldest.step, result, sessions)
            self._discard_unneeded_step(sessions)

    def _discard_unneeded_step(self, sessions: Sessions[Sequence]) -> None:
        """Cancel the step in flight if none of its rows is needed any more, because their turns
        have just ended. Done only without a device thread, because this thread would have to
        compute the step."""
        if self._has_device_thread or not self._steps_in_flight:
            return
        step, ticket = self._steps_in_flight[0].step, self._steps_in_flight[0].ticket
        if not isinstance(ticket, Exception) and not any(row.is_needed for row in step.rows):
            self._discard_step(sessions)

    def _discard_step(self, sessions: Sessions[Sequence]) -> None:
        """Cancel the one step in flight; its rows can be planned again."""
        in_flight = self._steps_in_flight.popleft()
        step, ticket = in_flight.step, in_flight.ticket
        self._counters.discard_steps()
        try:
            self._runner.discard(cast(TicketT, ticket))
        except Exception:  # its result is not needed
            log.exception("step %d failed on the device", step.batch.number)
        self._recorder.end_step(step.batch.number)
        self._roll_back(step.rows)
        self._advance_idle(step.rows, sessions)

    async def _await_result(self, step: InFlightStep) -> BatchResult | Exception:
        refusal = step.step.refusal
        if refusal is not None:
            log.error(
                "step %d is not computed: misplaced row %s of %s",
                step.step.batch.number,
                refusal.span,
                refusal.sequence.id,
            )
            return refusal
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
            return error.with_traceback(None)  # whose frames refer to the step, and to `error`

    async def _check_device(self, error: Exception) -> None:
        """Raise DeviceLost if the device cannot run another step; the turns then continue in the
        next engine process."""
        if self._has_device_thread:
            is_usable = await asyncio.wrap_future(
                self._device_executor.submit(self._runner.is_usable)
            )
        else:
            is_usable = self._runner.is_usable()
        if not is_usable:
            raise DeviceLost(f"the device is lost: {type(error).__name__}: {error}") from error

    def apply_result(
        self, step: PreparedStep, result: BatchResult, sessions: Sessions[Sequence]
    ) -> None:
        """Apply all effects of a completed step on its sequences. The sessions of its rows may be
        closed, forked and given new turns meanwhile; the rows stay the same."""
        self._counters.end_step(result.model_s, time.monotonic() if self._steps_in_flight else None)
        self._scheduler.time.observe(step.load, result.model_s)
        for row, drawn in zip(step.rows, result.results, strict=True):
            self._apply_row(row, drawn, sessions)
        self._recorder.end_step(step.batch.number)

    def _collect_on_thread(self, step: InFlightStep) -> BatchResult:
        """Collect a step; runs on the device thread."""
        return self._runner.collect(cast("Future[Any]", step.ticket).result())

    def _apply_row(
        self, scheduled: ScheduledRow, drawn: RowResult | None, sessions: Sessions[Sequence]
    ) -> None:
        """Apply the drawn ids of a computed row and commit its KV. If the log was cut since the
        launch, KV beyond its end is discarded; so are ids drawn for a turn that has ended, and the
        KV of drafts that were not drawn."""
        sequence, count, turn, drafts = (
            scheduled.sequence,
            scheduled.tokens,
            scheduled.turn,
            scheduled.drafts,
        )
        lease = sequence.lease
        length = len(sequence.ids) - lease.committed
        kept = count if length >= count else max(length, 0)
        running = sequence.turn
        if running is not None and not running.first_id_s and running.is_admitted:
            running.count_prefill(lease.committed, count)
        elif running is None and turn is None:
            sequence.count_ahead(lease.committed, count)
        if turn is not None:
            sequence.promised -= len(drafts) or 1
            if turn is running:
                assert drawn is not None
                kept += self._apply_drawn(sequence, turn, drawn, drafts, sessions)
        self._cache.commit(lease, count, kept)
        self._counters.tokens_computed += count
        if lease.committed > sequence.committed_high_water:
            known = len(sequence.ids)
            sequence.committed_high_water = lease.committed if lease.committed < known else known
        if sequence.publish_to:
            self._publish_prompt(sequence)
        if sequence.turn is None and not lease.reserved:
            sessions.advance_if_idle(sequence)

    def _publish_prompt(self, sequence: Sequence) -> None:
        """Publish the computed pages of the session's first prompt in the radix tree, so that other
        sessions need not compute them while the rest of it is prefilled."""
        self._cache.publish(sequence.lease, sequence.ids, sequence.publish_to)
        if sequence.committed >= sequence.publish_to:
            sequence.publish_to = 0

    def _apply_drawn(
        self,
        sequence: Sequence,
        turn: Turn,
        drawn: RowResult,
        drafts: "array[int]",
        sessions: Sessions[Sequence],
    ) -> int:
        """Apply the id drawn for a running turn, and those drawn after each draft up to the first
        wrong one; or the failure of its row. Returns the number of drafts that were drawn."""
        ids: list[int] = []
        accepted, result = 0, drawn
        while (failure := result.failure) is None:
            ids.append(result.id)
            if accepted == len(drafts) or drafts[accepted] != result.id:
                break
            result = drawn.after_drafts[accepted]
            accepted += 1
        if ids:
            logprobs = None if drawn.logprobs is None else _list_logprobs(drawn, len(ids))
            count = sessions.transitions.apply_ids(sequence, turn, ids, logprobs)
            self._counters.tokens_drawn += count
            accepted = min(accepted, count)
            if self._speculation is not None:
                self._record_drafts(self._speculation, sequence, turn, len(drafts), count)
        if failure is not None and sequence.turn is turn:
            sessions.transitions.end_turn(sequence, "failed", error=failure)
        return accepted

    def _record_drafts(
        self, speculation: Speculation, sequence: Sequence, turn: Turn, drafts: int, ids: int
    ) -> None:
        """Record that a row with this number of `drafts` has drawn this number of `ids`."""
        turn.launched_tokens -= 1 + drafts - ids
        if drafts:
            self._counters.record_drafts(drafts, ids - 1)
        speculation.observe(sequence, turn, drafts, ids, time.monotonic())

    def apply_failure(
        self, steps: list[PreparedStep], error: Exception, sessions: Sessions[Sequence]
    ) -> None:
        """Roll back `steps`, of which the first has failed on the device; the later ones are lost
        with it.

        The rows of all steps are planned again, those of the failed step in smaller groups, until
        the row that fails alone is found: only its turn fails, and its session stays open. If the
        step was refused, the turn of its misplaced row fails. If a step had page moves, all KV is
        discarded, because the content of the pages is undefined; but not for blanks, which fill
        pages of rows that are rolled back.
        """
        self._counters.failed_steps += len(steps)
        for step in steps:
            self._recorder.end_step(step.batch.number)
        rows = [row for step in steps for row in step.rows]
        self._roll_back(rows)
        culprit = self._find_culprit(steps[0])
        if culprit is not None:
            if culprit.turn is not None:
                sessions.transitions.end_turn(
                    culprit, "failed", error=f"{type(error).__name__}: {error}"
                )
            self._scheduler.remove(culprit)
        if any(move.kind != "blank" for step in steps for move in step.batch.moves):
            self._scheduler.reset_kv()
        self._advance_idle(rows, sessions)

    def _find_culprit(self, step: PreparedStep) -> Sequence | None:
        """Return the sequence known to have made a step fail: that with misplaced rows, or the one
        that the search for a faulty row has found. None: it is not known yet."""
        if step.refusal is not None:
            self._counters.failed_audits += 1
            return step.refusal.sequence
        return self._scheduler.fault_isolation.record_failure(step.kv_ends)

    def _roll_back(self, rows: list[ScheduledRow]) -> None:
        """Undo the launch of rows that were not computed. Each may release pages of its own lease
        meanwhile, and a lease may have several rows."""
        for row in rows:
            self._cache.commit(row.sequence.lease, row.tokens, 0)
            if row.turn is not None:
                row.sequence.promised -= len(row.drafts) or 1
                row.turn.launched_tokens -= 1 + len(row.drafts)

    def _advance_idle(self, rows: list[ScheduledRow], sessions: Sessions[Sequence]) -> None:
        for sequence in dict.fromkeys(row.sequence for row in rows):
            sessions.advance_if_idle(sequence)

    # ---- between steps --------------------------------------------------------------------

    def take_events(self) -> list[EngineEvent]:
        events, self._outbox = self._outbox, []
        return events

    async def _sleep(self, timeout_s: float | None) -> None:
        """Sleep until a command arrives, or until a session timeout or an audit is due."""
        self._wakeup.clear()
        if self._inbox or self._outbox or self._is_stopping:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s or AUDIT_EVERY_S, AUDIT_EVERY_S)):
                await self._wakeup.wait()

    def _audit_idle(self) -> None:
        """Audit the cache once per AUDIT_EVERY_S; called only when the engine is idle."""
        if time.monotonic() - self._last_audit_s <= AUDIT_EVERY_S:
            return
        self._last_audit_s = time.monotonic()
        self._counters.audits += 1
        try:
            self._cache.audit()
        except AssertionError:
            self._counters.failed_audits += 1
            log.exception("the audit of the KV pages failed")


def _list_logprobs(drawn: RowResult, count: int) -> list[TokenLogprobs]:
    """List the log-probabilities of the first `count` ids that a row has drawn."""
    results = (drawn, *drawn.after_drafts)[:count]
    found = [result.logprobs for result in results if result.logprobs is not None]
    return [TokenLogprobs(each.drawn, each.top) for each in found]

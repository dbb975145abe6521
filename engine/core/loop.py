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
from typing import Generic, NamedTuple, cast

from continuo.engine.batch import Batch, DeviceLost, Drawn, Row, Runner, Sampled, Ticket
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.schedule import Load, Scheduler, Work
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.sessions import Sessions
from continuo.engine.core.turn import Turn
from continuo.engine.wire.flight_recorder import FlightRecorder, size_for
from continuo.engine.wire.messages import AnyEvent, LoopCommand, TokenLogprobs, Tokens

log = logging.getLogger(__name__)

AUDIT_EVERY_S = 60.0
"""How often an idle engine proves its books."""


SendAll = Callable[[list[AnyEvent]], None]


class Order(NamedTuple):
    """A step as it goes to the device, and what each row of it is for."""

    batch: Batch
    works: list[Work]
    load: Load

    @property
    def reaches(self) -> dict[Sequence, int]:
        """The position up to which each row brings the KV of its sequence."""
        rows = zip(self.works, self.batch.rows, strict=True)
        return {work.sequence: row.start + row.count for work, row in rows}


class Flight(NamedTuple):
    """A step on the device."""

    order: Order
    ticket: object
    """The runner's; where steps run ahead, its future. An Exception: it could not be launched."""


class Loop(Generic[Ticket]):
    def __init__(
        self,
        runner: Runner[Ticket],
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
        self._recorder = recorder or FlightRecorder(bytearray(size_for(scheduler.rows)))
        self._audit_every_step = audit_every_step
        self._beside = runner.geometry.steps_ahead > 0
        self._ahead = max(runner.geometry.steps_ahead, 1)
        self._device = ThreadPoolExecutor(1, "device")
        self._inbox: deque[LoopCommand] = deque()
        self._outbox: list[AnyEvent] = []
        self._work = asyncio.Event()
        self._flying: deque[Flight] = deque()
        self._stopping = False
        self._running: asyncio.AbstractEventLoop | None = None
        self._audited_s = time.monotonic()

    def tell(self, commands: list[LoopCommand]) -> None:
        """Commands from the link; they take effect at the next receive."""
        self._inbox.extend(commands)
        self._work.set()

    def wake(self) -> None:
        """From any thread: there may be something to do."""
        if self._running is not None:
            self._running.call_soon_threadsafe(self._work.set)

    def emit(self, event: AnyEvent) -> None:
        self._outbox.append(event)

    def stop(self) -> None:
        self._stopping = True
        self._work.set()

    async def run(self, sessions: Sessions, send: SendAll) -> None:
        """Until `stop`. Raises DeviceLost."""
        self._running = asyncio.get_running_loop()
        while not self._stopping:
            if self._flying and not self._beside:
                await self._approach(sessions)
            self._receive(sessions)
            launched = self._launch()
            send(self.take_events())
            if len(self._flying) > self._ahead or (self._flying and not launched):
                await self._collect(sessions)
                if self._flying:
                    send(self.take_events())
            elif not launched:
                self._audit_idle()
                await self._sleep(sessions.expire())
            if self._audit_every_step:
                self._cache.audit()
        while self._flying:
            flight = self._flying.popleft()
            await self._answer(flight)
            self._recorder.end(flight.order.batch.number)
        send(self.take_events())
        self._running = None
        self._device.shutdown(wait=True, cancel_futures=True)

    # ---- the verbs of a step --------------------------------------------------------------

    def _receive(self, sessions: Sessions) -> None:
        while self._inbox:
            sessions.apply(self._inbox.popleft())
        sessions.resume()
        sessions.expire()

    def _launch(self) -> bool:
        """Hands the next step to the device. False: there was nothing to do, or a bad row is
        searched for, which takes one step at a time."""
        if self._flying and self._scheduler.searching:
            return False
        order = self.order()
        if order is None:
            return False
        self._counters.begin(time.monotonic())
        ticket: object
        if self._beside:
            ticket = self._device.submit(self._runner.launch, order.batch)
        else:
            try:
                ticket = self._runner.launch(order.batch)
            except Exception as error:
                ticket = error
        self._flying.append(Flight(order, ticket))
        return True

    def order(self) -> Order | None:
        """Plans a step and writes it down for the device. None: nothing is owed."""
        works, load = self._scheduler.plan()
        if not works:
            return None
        number = self._counters.steps
        self._counters.steps += 1
        self._recorder.begin(number, [work.sequence.mark for work in works])
        rows = [self._row(work, number, index) for index, work in enumerate(works)]
        return Order(Batch(number, rows, self._cache.take_moves()), works, load)

    def _row(self, work: Work, number: int, index: int) -> Row:
        sequence, count, turn = work
        lease = sequence.lease
        start = lease.reach - count
        feed = -1
        ids = sequence.ids[start : start + count]
        if not ids:
            fed_by, feed = sequence.last_feed
            assert fed_by == number - 1, "a promise nobody keeps"
        sample = None
        asked = sequence.turn
        if asked is not None and not asked.taken_up_s:
            asked.taken_up_s = time.monotonic()
        if turn is not None:
            sample = turn.next_sample()
            sequence.promised += 1
            sequence.last_feed = (number, index)
        return Row(ids, feed, start, lease.pages, sample)

    async def _approach(self, sessions: Sessions) -> None:
        """Works at the step in flight to its end, or until others do the rest; then lets in what is
        to be received before the next one is planned."""
        order, ticket = self._flying[0]
        near = False
        if not isinstance(ticket, Exception):
            try:
                near = self._runner.approach(cast(Ticket, ticket))
            except Exception as error:
                self._flying[0] = Flight(order, error)
        if not near:
            await self._collect(sessions)
        await asyncio.sleep(0)

    async def _collect(self, sessions: Sessions) -> None:
        """Waits for the oldest step in flight and takes its effects. If the device failed it, those
        behind it are lost too: they go on from what it has not written."""
        flight = self._flying.popleft()
        sampled = await self._answer(flight)
        if isinstance(sampled, Exception):
            behind = list(self._flying)
            self._flying.clear()
            self._counters.rest()
            for other in behind:
                await self._answer(other)
                self._recorder.end(other.order.batch.number)
            await self._check_device(sampled)
            self.lose([each.order for each in (flight, *behind)], sampled, sessions)
        else:
            self.land(flight.order, sampled, sessions)
            self._abandon(sessions)

    def _abandon(self, sessions: Sessions) -> None:
        """Where this thread works at the step in flight: not if all it is for has just ended."""
        if self._beside or not self._flying:
            return
        order, ticket = self._flying[0]
        if isinstance(ticket, Exception) or any(work.wanted for work in order.works):
            return
        self._flying.popleft()
        self._counters.rest()
        try:
            self._runner.abandon(cast(Ticket, ticket))
        except Exception:  # nobody wanted it
            log.exception("step %d failed on the device", order.batch.number)
        self._recorder.end(order.batch.number)
        self._forget(order.works)
        self._settle(order.works, sessions)

    async def _answer(self, flight: Flight) -> Sampled | Exception:
        try:
            if self._beside:
                return await asyncio.wrap_future(self._device.submit(self._wait_for, flight))
            if isinstance(flight.ticket, Exception):
                raise flight.ticket
            return self._runner.collect(cast(Ticket, flight.ticket))
        except Exception as error:
            log.exception("step %d failed on the device", flight.order.batch.number)
            return error

    async def _check_device(self, error: Exception) -> None:
        """Raises DeviceLost where no step can be run any more: the turns go on in the engine that
        is started next."""
        if self._beside:
            works = await asyncio.wrap_future(self._device.submit(self._runner.works))
        else:
            works = self._runner.works()
        if not works:
            raise DeviceLost(f"the device is lost: {type(error).__name__}: {error}") from error

    def land(self, order: Order, sampled: Sampled, sessions: Sessions) -> None:
        """A step is done: its effects on sequences, all of them and only here."""
        self._counters.worked(sampled.model_s, time.monotonic() if self._flying else None)
        self._scheduler.observe(order.load, sampled.model_s)
        for work, drawn in zip(order.works, sampled.drawn, strict=True):
            self._land(work, drawn, sessions)
        self._recorder.end(order.batch.number)

    def _wait_for(self, flight: Flight) -> Sampled:
        """On the device thread."""
        return self._runner.collect(cast("Future[Ticket]", flight.ticket).result())

    def _land(self, work: Work, drawn: Drawn | None, sessions: Sessions) -> None:
        """KV of `count` tokens is written. Where the log was cut meanwhile, what lies beyond it is
        dropped, and so is an id drawn for a turn that has ended."""
        sequence, count, turn = work
        lease = sequence.lease
        kept = min(max(len(sequence.ids) - lease.committed, 0), count)
        self._cache.commit(lease, count, kept)
        self._counters.tokens_computed += count
        if lease.committed > sequence.reached:
            sequence.reached = min(lease.committed, len(sequence.ids))
        if sequence.publish_to:
            sessions.publish(sequence)
        if turn is not None:
            sequence.promised -= 1
            if turn is sequence.turn:
                assert drawn is not None
                self._take(sequence, turn, drawn, sessions)
        if not sequence.busy:
            sessions.settle(sequence)

    def _take(self, sequence: Sequence, turn: Turn, drawn: Drawn, sessions: Sessions) -> None:
        """An id has come back for a running turn."""
        if drawn.failure is not None:
            sessions.end(sequence, "failed", error=drawn.failure)
            return
        turn.first_id_s = turn.first_id_s or time.monotonic()
        sequence.ids.append(drawn.id)
        over = turn.took(drawn.id)
        self._counters.tokens_drawn += 1
        logprobs = None
        if drawn.logprobs is not None:
            logprobs = [TokenLogprobs(drawn.logprobs.drawn, drawn.logprobs.top)]
        self.emit(Tokens(sequence.id, turn.id, turn.outputs - 1, [drawn.id], logprobs))
        if over is not None:
            sessions.end(sequence, over)

    def lose(self, orders: list[Order], error: Exception, sessions: Sessions) -> None:
        """The device failed the first of these steps, and the others behind it are lost. All are
        planned again, the first in parts, until the row that fails alone is found: only its turn
        fails, and its session lives on. Where pages were to be moved, all KV is forgotten, because
        their content is undefined."""
        self._counters.failed_steps += len(orders)
        for order in orders:
            self._recorder.end(order.batch.number)
        works = [work for order in orders for work in order.works]
        self._forget(works)
        culprit = self._scheduler.failed(orders[0].reaches)
        if culprit is not None:
            if culprit.turn is not None:
                sessions.end(culprit, "failed", error=f"{type(error).__name__}: {error}")
            self._scheduler.remove(culprit)
        if any(order.batch.moves for order in orders):
            self._scheduler.forget()
        self._settle(works, sessions)

    def _forget(self, works: list[Work]) -> None:
        """None of it has been done."""
        for sequence, count, turn in works:
            self._cache.commit(sequence.lease, count, 0)
            if turn is not None:
                sequence.promised -= 1
                turn.ordered -= 1

    def _settle(self, works: list[Work], sessions: Sessions) -> None:
        for sequence in dict.fromkeys(work.sequence for work in works):
            sessions.settle(sequence)

    # ---- between steps --------------------------------------------------------------------

    def take_events(self) -> list[AnyEvent]:
        events, self._outbox = self._outbox, []
        return events

    async def _sleep(self, at_most_s: float | None) -> None:
        """Until there is something to receive, or to expire, or to audit."""
        self._work.clear()
        if self._inbox or self._outbox or self._stopping:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(at_most_s or AUDIT_EVERY_S, AUDIT_EVERY_S)):
                await self._work.wait()

    def _audit_idle(self) -> None:
        """Now and then, where nothing is owed and nothing in flight: nobody waits for it."""
        if time.monotonic() - self._audited_s <= AUDIT_EVERY_S:
            return
        self._audited_s = time.monotonic()
        try:
            self._cache.audit()
        except AssertionError:
            self._counters.failed_audits += 1
            log.exception("the page books do not balance")

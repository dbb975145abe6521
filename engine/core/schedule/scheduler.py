"""Scheduler: the choice of the rows of the next step. Plain Python, independent of device, link and
clock.

    order      who is next (turn_queue.py)     group by group, in each the first turn that is due
    admission  who runs (admission.py)         is there room for the turn, now and at its peak
    packing    how much of it (packing.py)     tokens, rows and milliseconds (step_time.py)

Order and admission decide, and change nothing: `Scheduler.plan` carries their decisions out. No
turn enters or leaves a queue while a step is planned.
"""

from collections.abc import Iterator
from itertools import chain, islice

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.fault_isolation import FaultIsolation, SequenceFilter
from continuo.engine.core.restoring import match_prompt, restore_kv
from continuo.engine.core.schedule.admission import Admission
from continuo.engine.core.schedule.packing import SHORT_TURN_TOKENS_MAX, Packer, StepRows
from continuo.engine.core.schedule.step import StepLoad, StepPlan
from continuo.engine.core.schedule.step_time import StepTime
from continuo.engine.core.schedule.turn_queue import Search, TurnQueue, compute_due_step
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation import Speculation

REFUSED_TURNS_MAX = 4
"""Turns of a group refused admission in one step after which the search for one that fits ends."""


class Scheduler:
    """The order of turns and appends, and the rows of each next step.

    Owns the queues; sequences and leases belong to Sessions and to the cache. Called by Sessions
    (work appears and ends) and by EngineLoop (plan), on the thread of the loop. Always: a sequence
    is in at most one queue, and has at most one row in a step; a turn that is retracted while a
    step is planned has no row in it; a plan is made from counters alone, without clock or device.
    """

    def __init__(
        self,
        cache: SessionAwareCache,
        max_batched_tokens: int,
        max_rows: int,
        max_group_share: float = 1.0,
        *,
        samples_late: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        """Args:
        cache: reserves pages for the rows; shared with EngineLoop and Sessions.
        max_batched_tokens: maximum tokens of a step, all rows together.
        max_rows: maximum rows of a step.
        max_group_share: maximum share of rows and pages for one group, from 0 to 1.
        samples_late: as in `Geometry`.
        speculation: drafts ids for the live rows. None: no row has drafts.
        """
        self.cache = cache
        self.max_batched_tokens = max_batched_tokens
        self.max_rows = max_rows
        self._samples_late = samples_late
        self._speculation = speculation
        self.has_new_short_turn = False
        """Whether a short turn was added after the last plan."""
        self._steps = 0
        """Number of steps planned."""
        self.admission = Admission(cache, max_rows, max_group_share)
        self.time = StepTime()
        self.fault_isolation = FaultIsolation()
        self._short, self._long = TurnQueue(), TurnQueue()
        """Turns that owe at most SHORT_TURN_TOKENS_MAX tokens of their prompt, and the others."""
        self._appends: dict[Sequence, None] = {}
        """Sequences without a turn whose log has ids to prefill."""
        self._overdue: Sequence | None = None
        """The first admitted turn for which the last step had no room; or, if `_is_claiming`, a
        turn that claims pages of turns in flight."""
        self._is_claiming = False
        self._packer = Packer(cache, self.admission, self.fault_isolation, speculation)
        self._prefixes = self._packer.prefixes

    # ---- work -----------------------------------------------------------------------------

    def add_turn(self, sequence: Sequence) -> None:
        turn = sequence.turn
        assert turn is not None
        self._appends.pop(sequence, None)
        self.admission.add(sequence)
        turn.first_step = turn.last_step = self._steps
        if sequence.turn_count == 1:
            match_prompt(self.cache, sequence)
        self._queue(sequence)
        self.has_new_short_turn |= sequence in self._short.places

    def add_append(self, sequence: Sequence) -> None:
        """Add a sequence without a turn whose log has ids to prefill."""
        self._appends[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        self._appends.pop(sequence, None)
        self.admission.remove(sequence)
        self._dequeue(sequence)

    def retract(self, sequence: Sequence) -> None:
        """Make the pages of a turn evictable. It continues when there is room; its ids stay."""
        self.admission.retract(sequence, self._steps)

    def reset_kv(self) -> None:
        """Discard all KV, so that every turn restarts. Nothing may be in flight."""
        for sequence in list(self.admission.admitted):
            self.admission.revoke(sequence)
        self.cache.reset()

    def _queue(self, sequence: Sequence) -> None:
        """Queue a turn that is not admitted, or owes more than the id drawn last, by what it owes
        now. Any other turn leaves the queue."""
        turn = sequence.turn
        if turn is None or (turn.is_admitted and sequence.owed <= 1):
            self._dequeue(sequence)
            return
        tokens = sequence.uncached_tokens
        due_step = compute_due_step(turn, tokens / self.max_batched_tokens, self.time.step_s)
        if due_step < turn.due_step:
            turn.due_step = due_step
        is_short = tokens <= SHORT_TURN_TOKENS_MAX
        (self._long if is_short else self._short).remove(sequence)
        (self._short if is_short else self._long).push(sequence)

    def _dequeue(self, sequence: Sequence) -> None:
        if not self._short.remove(sequence):
            self._long.remove(sequence)

    def _is_queued(self, sequence: Sequence) -> bool:
        return sequence in self._short.places or sequence in self._long.places

    def _has_work(self, sequence: Sequence) -> bool:
        return sequence in self.admission.turns or sequence in self._appends

    @property
    def is_isolating_fault(self) -> bool:
        """Whether the rows of each step are restricted by the search for a faulty row."""
        search = self.fault_isolation
        return bool(search.groups) and search.is_searching(self._has_work)

    # ---- one step -------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Plan the next step, and reserve the pages of its rows in the cache.

        Rows are added in this order, as long as the step has tokens and rows left:

        1. the turn for which the last step had no room; it leaves a token for each decode;
        2. live rows: decodes, then short turns that are admitted, never split. If they are more
           than the rows, those first whose last row is longest ago, shared among groups;
        3. chunks of long turns that are admitted, within the time that the live rows leave;
        4. chunks of appends without a turn, firm before provisional, in the same time.

        Three turns wait; which run in the next step?

        - Prompts of 20, 300 and 2,000 tokens, in a step of 512: the 20, whole; then 300, and the
          first 192 of the 2,000. Beside decodes that take 10 ms: the 20, and as many of the 300 as
          take 5 ms.
        - Prompts of 600 tokens of groups a, a and b, in a step of 512: 512 of the first of a. The
          next step begins with b, because 512 tokens were computed for a and none for b.
        - Prompts of 1,000, 1,000 and 100 tokens, with pages for 1,200: the 100 and the first 1,000.
          The other one is refused until its prompt has room, and so has the expected peak of all
          three. If it is the oldest, it is admitted at once, and takes pages of the others.
        """
        self.has_new_short_turn = False
        if not (self.admission.turns or self._appends):
            self._overdue, self._is_claiming = None, False
            return StepPlan([], StepLoad())
        plan = self._plan_suspects() if self.fault_isolation.groups else self._plan_selected(None)
        if plan.rows:
            self._steps += 1
        return plan

    def _plan_suspects(self) -> StepPlan:
        """Plan a step of the first selection of sequences, in the search for a faulty one, that can
        have a row. Others may have to be retracted meanwhile."""
        plan = StepPlan([], StepLoad())
        for selection in self.fault_isolation.row_selections(self._has_work):
            overdue = self._overdue
            plan = self._plan_selected(selection.sequence_filter)
            if selection.has_only_suspects:
                self._overdue = overdue
            if plan.rows:
                self.fault_isolation.record_selection(selection)
                break
        return plan

    def _plan_selected(self, accepts: SequenceFilter | None) -> StepPlan:
        """Plan a step of the sequences that `accepts` returns True for; None: of all."""
        if unqueued := self.admission.unqueued:
            self.admission.unqueued = []
            for sequence in unqueued:
                self._queue(sequence)
        step = StepRows(self._steps + 1, self.max_batched_tokens, self.max_rows)
        if self._is_claiming and self.cache.has_in_flight():
            return step.plan()
        decoding, prefilling = self._admitted_turns(accepts)
        overdue, self._overdue, self._is_claiming = self._overdue, None, False
        if not (self._short.places or self._long.places or self._appends):
            if overdue is not None:
                decoding.sort(key=lambda s: s is not overdue)
            is_complete, plan = self._packer.add_live_rows(step, decoding), step.plan()
            if not is_complete:
                self._record_missed(step, [])
            elif plan.rows:
                self.time.live_load = plan.load
            return plan
        search = Search(accepts, prefilling)
        has_live_rows = self._plan_with_prefill(step, decoding, overdue, search)
        for sequence in search.seen:
            self._queue(sequence)
        for name, served in step.served.items():
            self._short.charge(name, served)
            self._long.charge(name, served)
        return step.plan(0.0 if has_live_rows or accepts else self.time.discardable_s)

    def _plan_with_prefill(
        self, step: StepRows, decoding: list[Sequence], overdue: Sequence | None, search: Search
    ) -> bool:
        """Add the rows of a step while turns or appends wait for prefill. Meanwhile turns are
        admitted and retracted. Returns whether the step has any rows but prefill chunks."""
        self._prefixes.begin_step()
        has_live_rows = is_complete = True
        waiting: list[Sequence] = []
        if overdue is not None and (overdue in decoding or self._is_queued(overdue)):
            decoding = [s for s in decoding if s is not overdue]
            if search.takes(overdue) and self._admit(overdue) and overdue.owed:
                waiting.append(overdue)
                tokens = max(min(SHORT_TURN_TOKENS_MAX, step.remaining_tokens - len(decoding)), 1)
                is_complete = self._packer.add_row(step, overdue, min(overdue.owed, tokens))
        if is_complete:
            live, is_searching = decoding, True
            while is_complete and is_searching:
                short = self._admit_short_turns(step, search) if self._short.places else []
                is_complete = self._packer.add_live_rows(step, live + short)
                waiting, live = waiting + short, []
                is_searching = 0 < len(short) < len(self._short.places) and bool(step)
            if is_complete and (has_live_rows := bool(step.rows)):
                self.time.live_load = step.load
            if is_complete or not step:
                self._add_chunks(step, search, waiting)
        self._record_missed(step, waiting, is_complete=is_complete)
        return has_live_rows

    def _record_missed(
        self, step: StepRows, waiting: list[Sequence], *, is_complete: bool = False
    ) -> None:
        """Make the oldest of the `waiting` turns that have no row the first of the next step. So
        is, if the step was full or lacked pages, the oldest turn of all: no turn takes pages from
        it, so that turns always finish."""
        if self.admission.admitted and not (step and is_complete):
            oldest = self.admission.oldest_admitted()
            waiting += [oldest] if step or self._is_queued(oldest) else []
        missed = [s for s in waiting if s not in step.rows and s.turn is not None]
        if missed and not self._is_claiming:
            self._overdue = min(missed, key=lambda s: s.turn.arrival if s.turn else 0)

    def _admitted_turns(
        self, accepts: SequenceFilter | None
    ) -> tuple[list[Sequence], list[Sequence]]:
        """List the admitted turns that owe only the id drawn last and can launch it now (if
        `accepts` is given, only those for which it returns True), and those that owe more, which
        are queued."""
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        speculation = None if self.fault_isolation.groups else self._speculation
        for sequence in self.admission.admitted:
            turn, owed = sequence.turn, sequence.owed
            assert turn is not None
            if owed > 1:
                prefilling.append(sequence)
                if not self._is_queued(sequence):
                    self._queue(sequence)
            elif (
                owed
                and turn.launched_tokens < turn.max_output_tokens
                and (self._samples_late or not sequence.promised or turn.can_run_ahead)
                and not (speculation and sequence.promised and speculation.waits_for_id(sequence))
            ):
                decoding.append(sequence)
        return decoding if accepts is None else list(filter(accepts, decoding)), prefilling

    def _add_chunks(self, step: StepRows, search: Search, waiting: list[Sequence]) -> None:
        """Add chunks of long turns, listed in `waiting`, then of appends. Meanwhile turns are
        admitted and retracted. A full step admits the first turn only, first in the next one."""
        if not (self._long.places or self._appends):
            return
        limit_s, rows = self.time.step_s_max(step.load) if step else 0.0, step.remaining_rows
        for sequence in self._admit_in_order(self._long, step, search, search.blocked):
            waiting.append(sequence)
            if not step:
                return
            is_first = step.remaining_rows == rows
            fits = self.time.chunk_tokens(sequence.launched, limit_s, step, is_first=is_first)
            if not fits:
                break
            if not self._packer.add_row(step, sequence, min(sequence.owed, fits)) or not step:
                return
        self._add_appends(step, search, limit_s)

    def _add_appends(self, step: StepRows, search: Search, limit_s: float) -> None:
        """Add chunks of appends, firm ones before provisional ones. A sequence with deferred
        commands is skipped while tokens of it are in flight, so that these commands can be
        applied. An append for which there is no page is dropped."""
        cache, appends = self.cache, filter(search.takes, self._appends)
        for sequence in sorted(appends, key=lambda s: s.log.provisional_start is not None):
            lease, in_flight = sequence.lease, sequence.in_flight
            if not step:
                return
            if in_flight and sequence.deferred:
                continue
            if not in_flight:
                restore_kv(cache, sequence, match_shared=sequence.publish_to > 0)
            is_computed = self._prefixes.are_computed_for(sequence)
            owed = cache.prefill_end(len(sequence.ids)) - lease.launched
            fits = self.time.chunk_tokens(lease.launched, limit_s, step, is_first=True)
            count = 0 if is_computed else min(owed, fits)
            if count > 0 and self._packer.reserve_row(step, sequence, count):
                continue
            if not in_flight:
                cache.mark_idle(lease)
            if not (in_flight or is_computed):
                del self._appends[sequence]

    # ---- who runs -------------------------------------------------------------------------

    def _admit_short_turns(self, step: StepRows, search: Search) -> list[Sequence]:
        """Admit short turns for the room that is left in the step, and list them."""
        short: list[Sequence] = []
        tokens = step.remaining_tokens
        for sequence in self._admit_in_order(self._short, step, search, set()):
            short.append(sequence)
            self._prefixes.add(sequence)
            tokens -= sequence.owed
            if tokens <= 0 or len(short) >= step.remaining_rows:
                break
        return short

    def _admit_in_order(
        self, queue: TurnQueue, step: StepRows, search: Search, skipped: set[str]
    ) -> Iterator[Sequence]:
        """Admit the turns of a queue that have room, in order, and yield those that owe tokens:
        first turns, then those admitted before, which do not wait for others to be admitted. Turns
        may be retracted meanwhile, but none enters or leaves the queue. The groups `skipped` are
        left out, and those of which several turns were refused are added. A turn whose prefix
        another one is computing waits for it."""
        refused: dict[str, int] = {}
        first = islice(queue.in_order(skipped, step.served), self.max_rows + REFUSED_TURNS_MAX)
        admitted = search.prefilling and [s for s in search.prefilling if s in queue.places]
        for sequence in filter(search.takes, chain(first, admitted)):
            turn, group = sequence.turn, sequence.group
            assert turn is not None
            if sequence.turn_count == 1:
                match_prompt(self.cache, sequence)
            if self._prefixes.are_computed_for(sequence):
                continue
            if self._admit(sequence):
                if sequence.owed:
                    yield sequence
                continue
            refused[group] = refused.get(group, 0) + 1
            if refused[group] >= REFUSED_TURNS_MAX:
                skipped.add(group)
            if group in skipped or turn.due_step <= self._steps:
                search.blocked.add(group)

    def _admit(self, sequence: Sequence) -> bool:
        """Admit a turn if there is room for it, and retract the turns whose pages it claims.
        Returns whether it is admitted. If some of these are in flight, the next step is planned
        when nothing is, and the turn is first in it. No queue changes meanwhile."""
        turn, lease = sequence.turn, sequence.lease
        assert turn is not None
        if turn.is_admitted or sequence.in_flight or sequence in self.admission.unqueued:
            return turn.is_admitted
        victims = self.admission.decide(sequence, self._steps)
        if victims is None:
            return False
        if victims and any(victim.in_flight for victim in victims):
            if not self._is_claiming:
                self._overdue, self._is_claiming = sequence, True
            return False
        for victim in victims:
            self.retract(victim)
        restore_kv(self.cache, sequence, match_shared=sequence.turn_count == 1)
        if sequence.computed_ahead and lease.committed == len(sequence.ids):
            sequence.computed_ahead -= 1  # the last id is computed again, for its logits
        self.cache.rewind(lease, len(sequence.ids) - 1)
        self.admission.admit(sequence, self._steps)
        if turn.cached_tokens is None:
            turn.cached_tokens = lease.committed
            turn.residency = sequence.worst_residency
        return True

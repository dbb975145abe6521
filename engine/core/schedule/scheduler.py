"""Scheduler: who gets how much of the next step. Plain Python: knows no device, no wire, no clock.

Order of a step: running decodes and short turns, whole; then long ones that someone waits for, cut
to the time that is left, oldest first; then appends nobody waits for yet. A step that serves live
turns is made at most half as long again by what is cold beside them. Where decodes and short turns
leave nothing, the turn that has waited longest goes first in the next step.

Pages: a turn may take them from whatever is idle and from strictly younger turns (retraction), so
the oldest turn always goes on and somebody always finishes. A turn that holds nothing yet is
admitted when its whole prompt could be had; the oldest is admitted always.

After a step has failed, the sequences that may share the next one are limited: see isolation.py.
"""

from collections.abc import Collection
from typing import NamedTuple

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.schedule.budget import StepBudget, StepLoad, allot
from continuo.engine.core.schedule.fault_isolation import FaultIsolation, SequenceFilter
from continuo.engine.core.schedule.step_time_model import StepTimeModel
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import KVResidency

SHORT_TURN_TOKENS_MAX = 64
"""A turn that owes no more than this is never cut: nobody's step grows much by it."""
CHUNK_TOKENS_MIN = 16
"""A cold prompt gets at least this much of a step, however busy."""
RESIDENCY_ORDER: tuple[KVResidency, ...] = ("none", "hot", "host", "recomputed")
"""From nothing to bring, to the longest way."""
PREFILL_S_MAX = 0.05
"""Seconds a step may take with cold work alone: what a newcomer may have to wait for."""
PREFILL_S_MIN = 0.002
"""Seconds that cold work may always add to a step."""
PREFILL_SHARE = 0.5
"""How much longer a step with live turns may become by cold work."""
PREFILL_GROWTH = 1.5
"""From one step without live turns to the next, how much more cold work it may do."""


class ScheduledRow(NamedTuple):
    """`tokens` more of a sequence; `turn` draws an id from the last of them, if given."""

    sequence: Sequence
    tokens: int
    turn: Turn | None

    @property
    def is_needed(self) -> bool:
        """Not if all it does is draw an id for a turn that has ended."""
        return self.turn is None or self.turn is self.sequence.turn


class StepPlan(NamedTuple):
    """A step: its rows, and what they make the device do."""

    rows: list[ScheduledRow]
    load: StepLoad


class Scheduler:
    def __init__(self, cache: SessionAwareCache, max_batched_tokens: int, max_rows: int) -> None:
        self.cache = cache
        self.max_batched_tokens = max_batched_tokens
        self.max_rows = max_rows
        self.retractions = 0
        self._step_time = StepTimeModel()
        self._prefill_s = PREFILL_S_MAX
        """Seconds that the next step may give to cold work, if `_live` does not set them anew."""
        self._live_load = StepLoad()
        """What was live in the last step that served live turns, until it has set `_cold_s`."""
        self._turns: dict[Sequence, None] = {}
        """Sequences with a turn, by the age of the turn."""
        self._appends: dict[Sequence, None] = {}
        """Sequences that owe ids nobody waits for."""
        self._overdue: Sequence | None = None
        """The oldest waiting turn, if the last step had nothing for it."""
        self._fault_isolation = FaultIsolation()

    # ---- what there is to do --------------------------------------------------------------

    def add_turn(self, sequence: Sequence) -> None:
        self._appends.pop(sequence, None)
        self._turns[sequence] = None

    def add_append(self, sequence: Sequence) -> None:
        """It owes ids, and no turn waits for them."""
        self._appends[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        self._turns.pop(sequence, None)
        self._appends.pop(sequence, None)

    @property
    def turns(self) -> int:
        return len(self._turns)

    # ---- one step -------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The rows of the next step. Every count in it is reserved in the cache already."""
        if not self._fault_isolation:
            return self._plan(None)
        plan = StepPlan([], StepLoad())
        for share in self._fault_isolation.row_selections(self._has_work):
            overdue = self._overdue
            plan = self._plan(share.sequence_filter)
            if share.has_only_suspects:
                self._overdue = overdue
            if plan.rows:
                self._fault_isolation.record_selection(share)
                break
        return plan

    def _plan(self, sequence_filter: SequenceFilter | None) -> StepPlan:
        budget = StepBudget(self.max_batched_tokens, self.max_rows)
        works: list[ScheduledRow] = []
        decoding, waiting = self._candidates(sequence_filter)
        appends = (
            self._appends
            if sequence_filter is None
            else list(filter(sequence_filter, self._appends))
        )
        if waiting or appends:
            self._plan_with_prefill(decoding, waiting, appends, budget, works)
        else:
            self._overdue = None
            if self._schedule_all(decoding, budget, works) and works:
                self._live_load = budget.load
        return StepPlan(works, budget.load)

    def _plan_with_prefill(
        self,
        decoding: list[Sequence],
        waiting: list[Sequence],
        appends: Collection[Sequence],
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> None:
        """The decodes, and what is to be prefilled beside them."""
        waiting = [s for s in waiting if self._try_admit(s)]
        overdue = [s for s in waiting[:1] if s is self._overdue]
        rest = waiting[len(overdue) :]
        short = [s for s in rest if s.owed <= SHORT_TURN_TOKENS_MAX]
        long = [s for s in rest if s.owed > SHORT_TURN_TOKENS_MAX]
        if self._schedule_all(overdue, budget, rows) and self._schedule_all(
            decoding + short, budget, rows
        ):
            live = budget.load
            self._live_load = live if live.rows else self._live_load
            limit_s = self._step_time_limit(live) if long or appends else 0.0
            if self._schedule_chunks(long, limit_s, budget, rows):
                self._schedule_appends(appends, limit_s, budget, rows)
        oldest = waiting[0] if waiting else None
        self._overdue = None if any(work.sequence is oldest for work in rows) else oldest

    def observe(self, load: StepLoad, seconds: float) -> None:
        """What a planned step has cost on the device."""
        self._step_time.observe(load, seconds)

    def record_failure(self, kv_ends: dict[Sequence, int]) -> Sequence | None:
        """A step has raised an exception: see Isolation."""
        return self._fault_isolation.record_failure(kv_ends)

    def isolate(self, sequence: Sequence, extra_tokens: int) -> None:
        """Plan steps of its own for a sequence, until it has KV of its ids and of `more`."""
        self._fault_isolation.add_suspect(sequence, extra_tokens)

    @property
    def is_isolating_fault(self) -> bool:
        """Whether steps are limited in order to find a bad row."""
        return bool(self._fault_isolation) and self._fault_isolation.is_searching(self._has_work)

    def retract(self, sequence: Sequence) -> None:
        """The turn gives back all its pages and starts over when there is room; its ids stay."""
        assert sequence.turn is not None
        self.retractions += 1
        sequence.turn.is_admitted = False
        self.cache.retract(sequence.lease)

    def reset_kv(self) -> None:
        """All KV is lost, and nothing is in flight: every turn starts over."""
        for sequence in self._turns:
            assert sequence.turn is not None
            sequence.turn.is_admitted = False
        self.cache.reset()

    # ---- inside ---------------------------------------------------------------------------

    def _has_work(self, sequence: Sequence) -> bool:
        return sequence in self._turns or sequence in self._appends

    def _candidates(
        self, sequence_filter: SequenceFilter | None
    ) -> tuple[list[Sequence], list[Sequence]]:
        """(turns that owe the one id they have just drawn, turns that owe more)."""
        decoding: list[Sequence] = []
        waiting: list[Sequence] = []
        for sequence in (
            self._turns if sequence_filter is None else filter(sequence_filter, self._turns)
        ):
            turn = sequence.turn
            assert turn is not None
            owed = sequence.owed
            if owed > 1 or not turn.is_admitted:
                waiting.append(sequence)
            elif (
                owed
                and turn.launched_tokens < turn.max_output_tokens
                and (turn.can_run_ahead or not sequence.promised)
            ):
                decoding.append(sequence)
        return decoding, waiting

    def _try_admit(self, sequence: Sequence) -> bool:
        turn = sequence.turn
        assert turn is not None
        if turn.is_admitted:
            return True
        if sequence.in_flight:
            return False
        cache, lease, prompt = self.cache, sequence.lease, len(sequence.ids)
        pages = -(-(prompt + 1) // cache.page_size)
        if not self._is_oldest(sequence) and pages > cache.available_pages():
            return False
        self._restore_kv(sequence, prompt - 1, match_shared=sequence.turn_count == 1)
        cache.rewind(lease, prompt - 1)
        turn.is_admitted = True
        if turn.cached_tokens is None:
            turn.cached_tokens = lease.committed
            turn.residency = sequence.worst_residency
        return True

    def _restore_kv(self, sequence: Sequence, limit: int, *, match_shared: bool = False) -> None:
        """The lease awake, with all KV of ids[:limit] that there is: what was spilled is recalled,
        and what is shared is taken where the lease has nothing, or when told to `look`."""
        cache, lease = self.cache, sequence.lease
        cache.mark_busy(lease)
        recalled = bool(lease.host_pages) and cache.recall(lease)
        if not lease.committed or match_shared:
            cache.match(lease, sequence.ids, limit)
        lost = lease.committed < min(sequence.committed_high_water, limit)
        found = _residency(lost, recalled, lease.committed)
        if RESIDENCY_ORDER.index(found) > RESIDENCY_ORDER.index(sequence.worst_residency):
            sequence.worst_residency = found

    def _step_time_limit(self, live: StepLoad) -> float:
        """Seconds that a step may take with cold work beside what is live. Live turns come back at
        once: a step of cold work alone is as short as beside them, then longer step by step."""
        live_s = self._step_time.predict(self._live_load)
        if self._live_load.rows:
            self._prefill_s = min(max(live_s * PREFILL_SHARE, PREFILL_S_MIN), PREFILL_S_MAX)
            self._live_load = StepLoad()
        if live.rows:
            return live_s + self._prefill_s
        limit_s, self._prefill_s = (
            self._prefill_s,
            min(self._prefill_s * PREFILL_GROWTH, PREFILL_S_MAX),
        )
        return limit_s

    def _schedule_all(
        self, sequences: list[Sequence], budget: StepBudget, rows: list[ScheduledRow]
    ) -> bool:
        """A row for each. False: the step has no room for one of them, or what it needs is still in
        flight; nothing more can be planned in this step."""
        for sequence in sequences:
            count = min(sequence.owed, SHORT_TURN_TOKENS_MAX, budget.remaining_tokens)
            if (
                not count
                or not budget.remaining_rows
                or not self._schedule_turn(sequence, count, budget, rows)
            ):
                return False
        return True

    def _schedule_chunks(
        self,
        sequences: list[Sequence],
        limit_s: float,
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> bool:
        """Chunks of long prompts, within the time."""
        sequences = sequences[: budget.remaining_rows]
        if not sequences:
            return True
        tokens = self._chunk_tokens(sequences[0], limit_s, budget)
        for sequence, count in zip(
            sequences, allot([s.owed for s in sequences], tokens), strict=True
        ):
            if count and not self._schedule_turn(sequence, count, budget, rows):
                return False
        return True

    def _chunk_tokens(self, sequence: Sequence, limit_s: float, budget: StepBudget) -> int:
        if not self._step_time.is_fitted:
            return budget.remaining_tokens
        start = sequence.launched
        fits = self._step_time.tokens_within(limit_s, budget.load, start, budget.remaining_tokens)
        return min(max(fits, CHUNK_TOKENS_MIN), budget.remaining_tokens)

    def _schedule_turn(
        self, sequence: Sequence, count: int, budget: StepBudget, rows: list[ScheduledRow]
    ) -> bool:
        """Reserves `count` tokens for a turn, unless an older one has just taken its pages. False:
        nothing more can be planned in this step, because what it needs is still in flight."""
        assert sequence.turn is not None
        if not sequence.turn.is_admitted:
            return True
        while not self.cache.reserve(sequence.lease, count):
            younger = self._younger_holders(sequence)
            victim = next((s for s in younger if not s.in_flight), None)
            if victim is not None:
                self.retract(victim)
            elif younger:
                return False
            elif not self._is_oldest(sequence):
                return True
            elif self.cache.has_in_flight():
                return False
            else:
                self._release_last_page(sequence)
        self._add_row(sequence, count, budget, rows)
        return True

    def _add_row(
        self, sequence: Sequence, count: int, budget: StepBudget, rows: list[ScheduledRow]
    ) -> None:
        reach = sequence.lease.launched
        budget.spend(reach - count, count)
        draws = reach == sequence.promised_end and sequence.can_draw
        rows.append(ScheduledRow(sequence, count, sequence.turn if draws else None))

    def _release_last_page(self, sequence: Sequence) -> None:
        """The pool is full of this one turn's pages and lacks only one to copy its last, shared
        page to: that page is let go and computed again."""
        size = self.cache.page_size
        assert sequence.committed % size, "the oldest turn cannot have the pages it needs"
        self.cache.rewind(sequence.lease, sequence.committed // size * size)

    def _is_oldest(self, sequence: Sequence) -> bool:
        return next(iter(self._turns)) is sequence

    def _younger_holders(self, sequence: Sequence) -> list[Sequence]:
        """Younger turns that hold pages, youngest first."""
        found: list[Sequence] = []
        for other in reversed(self._turns):
            if other is sequence:
                break
            if other.turn is not None and other.turn.is_admitted and other.lease.pages:
                found.append(other)
        return found

    def _schedule_appends(
        self,
        appends: Collection[Sequence],
        limit_s: float,
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> None:
        """Firm ones before provisional ones. What is asked of one meanwhile waits until nothing of
        it is in flight."""
        for sequence in sorted(appends, key=lambda s: s.log.provisional_start is not None):
            if not budget:
                return
            if sequence.in_flight and sequence.deferred:
                continue
            cache, lease = self.cache, sequence.lease
            if not sequence.in_flight:
                self._restore_kv(sequence, len(sequence.ids))
            count = min(sequence.owed, self._chunk_tokens(sequence, limit_s, budget))
            if count > 0 and cache.reserve(lease, count):
                self._add_row(sequence, count, budget, rows)
            elif not sequence.in_flight:
                cache.mark_idle(lease)
                del self._appends[sequence]


def _residency(lost: bool, recalled: bool, committed: int) -> KVResidency:
    if lost:
        return "recomputed"
    if recalled:
        return "host"
    return "hot" if committed else "none"

"""Scheduler: the choice of the rows of the next step. Plain Python, independent of device, link and
clock.

Order of rows: decodes and short turns (the live rows), never split; then prefill chunks of long
turns, oldest first, as large as the time left in the step allows; then prefill chunks of appends
without a turn. Chunks prolong a step with live rows by at most half. If live rows leave no room,
the turn that has waited longest is first in the next step.

Pages: a turn may take them from idle leases and from strictly younger turns (retraction), so the
oldest turn always makes progress and turns always finish. A turn without pages is admitted when its
whole prompt would fit; the oldest turn is always admitted.

After a failed step, the sequences that may share the next one are limited: see fault_isolation.py.
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
"""Maximum owed (not yet launched) tokens of a short turn. A short turn is not split into chunks,
because it hardly prolongs a step."""
CHUNK_TOKENS_MIN = 16
"""Minimum tokens of a prefill chunk, even if the time for prefill is used up."""
RESIDENCY_ORDER: tuple[KVResidency, ...] = ("none", "hot", "host", "recomputed")
"""Residencies by increasing cost of restoring a sequence's KV; "none": no KV had been computed. If
KV was restored several times before a turn, the turn reports the costliest."""
PREFILL_S_MAX = 0.05
"""Maximum seconds of a step that only prefills. A new turn may have to wait this long for its first
step."""
PREFILL_S_MIN = 0.002
"""Seconds that prefill chunks may always add to a step."""
PREFILL_SHARE = 0.5
"""Time that prefill chunks may add to a step, as a share of the time of its live rows (decodes and
short turns)."""
PREFILL_GROWTH = 1.5
"""Factor by which the time limit of prefill grows with each further step without live rows (decodes
and short turns)."""


class ScheduledRow(NamedTuple):
    """A row: the next `tokens` tokens of a sequence. If `turn` is given, an output id of that turn
    is drawn from the logits of the last token."""

    sequence: Sequence
    tokens: int
    turn: Turn | None

    @property
    def is_needed(self) -> bool:
        """Whether the row is still useful: it draws no id, or its turn has not ended."""
        return self.turn is None or self.turn is self.sequence.turn


class StepPlan(NamedTuple):
    """The rows of a step, and its load."""

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
        """Time that prefill chunks may take in the next step, in seconds. Set from `_live_load`
        after a step with live rows (decodes and short turns), and increased in each step without
        any."""
        self._live_load = StepLoad()
        """Load of the live rows (decodes and short turns) in the last step that had any; empty once
        `_prefill_s` was computed from it."""
        self._turns: dict[Sequence, None] = {}
        """Sequences with a turn, oldest turn first."""
        self._appends: dict[Sequence, None] = {}
        """Sequences without a turn whose log has ids to prefill."""
        self._overdue: Sequence | None = None
        """The oldest waiting turn, if the last step had no room for it."""
        self._fault_isolation = FaultIsolation()

    # ---- work -----------------------------------------------------------------------------

    def add_turn(self, sequence: Sequence) -> None:
        self._appends.pop(sequence, None)
        self._turns[sequence] = None

    def add_append(self, sequence: Sequence) -> None:
        """Add a sequence without a turn whose log has ids to prefill."""
        self._appends[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        self._turns.pop(sequence, None)
        self._appends.pop(sequence, None)

    @property
    def turns(self) -> int:
        return len(self._turns)

    # ---- one step -------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Plan the next step and reserve the pages of its rows in the cache."""
        if not self._fault_isolation:
            return self._plan(None)
        plan = StepPlan([], StepLoad())
        for selection in self._fault_isolation.row_selections(self._has_work):
            overdue = self._overdue
            plan = self._plan(selection.sequence_filter)
            if selection.has_only_suspects:
                self._overdue = overdue
            if plan.rows:
                self._fault_isolation.record_selection(selection)
                break
        return plan

    def _plan(self, sequence_filter: SequenceFilter | None) -> StepPlan:
        budget = StepBudget(self.max_batched_tokens, self.max_rows)
        rows: list[ScheduledRow] = []
        decoding, waiting = self._candidates(sequence_filter)
        appends = (
            self._appends
            if sequence_filter is None
            else list(filter(sequence_filter, self._appends))
        )
        if waiting or appends:
            self._plan_with_prefill(decoding, waiting, appends, budget, rows)
        else:
            self._overdue = None
            if self._schedule_all(decoding, budget, rows) and rows:
                self._live_load = budget.load
        return StepPlan(rows, budget.load)

    def _plan_with_prefill(
        self,
        decoding: list[Sequence],
        waiting: list[Sequence],
        appends: Collection[Sequence],
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> None:
        """Schedule decodes, short turns, and prefill chunks beside them."""
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
        self._overdue = None if any(row.sequence is oldest for row in rows) else oldest

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Record the seconds that a planned step took on the device."""
        self._step_time.observe(load, seconds)

    def record_failure(self, kv_ends: dict[Sequence, int]) -> Sequence | None:
        """Record that a step has raised an exception. `kv_ends`: for each sequence in the step, the
        position up to which its KV would have been written. Returns the sequence that causes the
        failures once it is identified, else None."""
        return self._fault_isolation.record_failure(kv_ends)

    def isolate(self, sequence: Sequence, extra_tokens: int) -> None:
        """Run a sequence in steps without other rows until its current ids and `extra_tokens` more
        have KV."""
        self._fault_isolation.add_suspect(sequence, extra_tokens)

    @property
    def is_isolating_fault(self) -> bool:
        """Whether the rows of each step are restricted by the search for a faulty row."""
        return bool(self._fault_isolation) and self._fault_isolation.is_searching(self._has_work)

    def retract(self, sequence: Sequence) -> None:
        """Release all pages of a turn, which restarts when there is room; its ids stay."""
        assert sequence.turn is not None
        self.retractions += 1
        sequence.turn.is_admitted = False
        self.cache.retract(sequence.lease)

    def reset_kv(self) -> None:
        """Discard all KV, so that every turn restarts. Nothing may be in flight."""
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
        """Return two lists of sequences with a turn, oldest turn first.

        The first list has the decoding sequences: they are admitted, and owe only the id drawn
        last. The second has the waiting ones: not admitted yet, or owing more than one token. A
        turn that cannot launch its next row yet is in neither list. If `sequence_filter` is given,
        only sequences that it accepts are returned.
        """
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
        """Admit a turn if its whole prompt can get pages, or if it is the oldest. Returns whether
        the turn is admitted."""
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
        """Mark the lease busy and restore all available KV of ids[:limit]: spilled pages are
        recalled; shared pages are matched if the lease is empty, or if `match_shared`."""
        cache, lease = self.cache, sequence.lease
        cache.mark_busy(lease)
        recalled = bool(lease.host_pages) and cache.recall(lease)
        if not lease.committed or match_shared:
            cache.match(lease, sequence.ids, limit)
        lost = lease.committed < min(sequence.committed_high_water, limit)
        residency = _residency(lease.committed, lost=lost, recalled=recalled)
        if RESIDENCY_ORDER.index(residency) > RESIDENCY_ORDER.index(sequence.worst_residency):
            sequence.worst_residency = residency

    def _step_time_limit(self, live: StepLoad) -> float:
        """Return the time limit of a step with prefill chunks, in seconds. `live`: load of its live
        rows (decodes and short turns).

        With live rows: their predicted time, and a share of it for the chunks. Without: the time
        for chunks alone. As live rows usually reappear soon, the first such step has as much of it
        as the step before; each later one has PREFILL_GROWTH times as much, up to PREFILL_S_MAX.
        """
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
        """Schedule a row for each sequence. Returns False if nothing more can be planned in this
        step: it is full, or the pages that a row needs are still in flight."""
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
        """Schedule chunks of long prompts within `limit_s`. Returns False if nothing more can be
        planned in this step."""
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
        """Return the tokens of a prefill chunk that fit into `limit_s`."""
        if not self._step_time.is_fitted:
            return budget.remaining_tokens
        start = sequence.launched
        fits = self._step_time.tokens_within(limit_s, budget.load, start, budget.remaining_tokens)
        return min(max(fits, CHUNK_TOKENS_MIN), budget.remaining_tokens)

    def _schedule_turn(
        self, sequence: Sequence, count: int, budget: StepBudget, rows: list[ScheduledRow]
    ) -> bool:
        """Schedule `count` tokens of a turn, unless the turn was retracted in this step or may not
        take the pages it needs from others. Returns False if nothing more can be planned in this
        step, because pages are still in flight."""
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
        """Release the last, partly used page of the only turn in a full pool. The page is shared
        and no free page is left to copy it to, so its tokens are recomputed."""
        size = self.cache.page_size
        assert sequence.committed % size, "the oldest turn cannot have the pages it needs"
        self.cache.rewind(sequence.lease, sequence.committed // size * size)

    def _is_oldest(self, sequence: Sequence) -> bool:
        return next(iter(self._turns)) is sequence

    def _younger_holders(self, sequence: Sequence) -> list[Sequence]:
        """List the sequences that have pages and a younger turn than `sequence`, youngest turn
        first."""
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
        """Schedule chunks of appends, firm ones before provisional ones. A sequence with deferred
        commands is skipped while tokens of it are in flight, so that these commands can be
        applied."""
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


def _residency(committed: int, *, lost: bool, recalled: bool) -> KVResidency:
    if lost:
        return "recomputed"
    if recalled:
        return "host"
    return "hot" if committed else "none"

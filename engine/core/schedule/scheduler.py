"""Scheduler: the choice of the rows of the next step. Plain Python, independent of device, link and
clock.

Order of rows: decodes and short turns (the live rows), never split; then prefill chunks of long
turns, in the order of TurnQueue, as large as the time left in the step allows; then prefill chunks
of appends without a turn. Chunks prolong a step with live rows by at most half. If live rows leave
no room, the first long turn is first in the next step. If there are more live rows than a step has,
they rotate. A long turn waits while another one computes the same prefix (prefixes_in_flight.py).

Pages: a turn is admitted when there is room for it (admission.py), and the oldest turn always. A
turn may take pages from idle leases, and from turns after it, which are retracted: their leases
become idle, so that they lose only as many pages as are needed, from the tail, and spill them to
the host tier while it has room. No turn takes pages from the oldest one, so turns always finish.

A row that reaches the end of the log may bring drafts (speculation). They take tokens that no other
row needs, and pages that no other turn has. No row has drafts while a faulty one is searched.

After a failed step, the sequences that may share the next one are limited: see fault_isolation.py.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.schedule.admission import Admission
from continuo.engine.core.schedule.budget import StepBudget, StepLoad
from continuo.engine.core.schedule.candidates import REFUSED_TURNS_MAX, PoppedTurns, Refusals
from continuo.engine.core.schedule.fault_isolation import FaultIsolation, SequenceFilter
from continuo.engine.core.schedule.group_admission import GroupAdmission, arrival
from continuo.engine.core.schedule.group_shares import interleave_groups
from continuo.engine.core.schedule.prefixes_in_flight import PrefixesInFlight
from continuo.engine.core.schedule.step_time_model import StepTimeModel
from continuo.engine.core.schedule.turn_queue import AGING, TurnQueue
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation import NO_DRAFTS, Speculation
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import KVResidency

SHORT_TURN_TOKENS_MAX = 64
"""Maximum owed (not yet launched) tokens of a short turn. A short turn is not split into chunks,
because it hardly prolongs a step."""
CHUNK_TOKENS_MIN = 16
"""Minimum tokens of a prefill chunk, even if the time for prefill is used up."""
CHUNK_TOKENS_MIN_ALONE = 48
"""The same in a step without live rows (decodes and short turns). With fewer tokens, a large model
on a CPU spends much of the step on reading its weights."""
RESIDENCY_ORDER: tuple[KVResidency, ...] = ("none", "hot", "host", "recomputed")
"""Residencies by increasing cost of restoring a sequence's KV; "none": no KV had been computed. If
KV was restored several times before a turn, the turn reports the costliest."""
PREFILL_S_MAX = 0.05
"""Maximum seconds of a step that only prefills. A new turn may have to wait this long for its first
step, unless it is short and the step is discarded for it."""
PREFILL_S_MIN = 0.002
"""Seconds that prefill chunks may always add to a step."""
PREFILL_SHARE = 0.5
"""Time that prefill chunks may add to a step, as a share of the time of its live rows (decodes and
short turns)."""
DISCARDED_SHARE = 0.25
"""Maximum share of the time of all steps that may be spent on steps which are then discarded,
because a short turn has begun."""
DISCARDED_S_MAX = 0.5
"""Maximum seconds of such steps in immediate succession."""
PREFILL_GROWTH = 1.5
"""Factor by which the time limit of prefill grows with each further step without live rows (decodes
and short turns)."""
STEP_S_WEIGHT = 0.1
"""Weight of the last step in the moving average of their duration."""
TURNS_PER_ROW_MAX = 2
"""Maximum admitted turns, as a multiple of the rows of a step. Those beyond the rows rotate."""
RETRY_STEPS = 8
"""Steps after which a refused turn is considered again, even if no page became available."""


class ScheduledRow(msgspec.Struct, frozen=True):
    """A row: the next `tokens` tokens of a sequence. If `turn` is given, an output id of that turn
    is drawn from the logits of the last token; with `drafts`, which are the last ones of `tokens`,
    from those of the token before them and of each draft."""

    sequence: Sequence
    start: int
    """Position of its first token: that up to which rows planned before compute KV."""
    tokens: int
    turn: Turn | None
    drafts: "array[int]" = NO_DRAFTS
    """While they are in flight they are promised, in place of the id that the row draws for
    certain, so that the turn owes nothing and has no other row."""

    @property
    def is_needed(self) -> bool:
        """Whether the row is still useful: it draws no id, or its turn has not ended."""
        return self.turn is None or self.turn is self.sequence.turn


class StepPlan(msgspec.Struct, frozen=True):
    """The rows of a step, at most one of each sequence, and its load."""

    rows: list[ScheduledRow]
    load: StepLoad
    discardable_s: float = 0.0
    """Seconds that may be lost if the step is discarded because a short turn begins; 0 or less: it
    may not be discarded. Only steps without live rows (decodes and short turns) may."""

    def misplaced(self) -> set[Sequence]:
        """Return the sequences that have two rows, or a row that does not end where the tokens
        reserved for it do. There are none, unless the scheduler has a defect."""
        return {
            row.sequence
            for row in self.rows
            if row.start + row.tokens != row.sequence.lease.launched
        }


class Scheduler:
    """The order of turns and appends, and the rows of each next step.

    Owns the queues, which turns are admitted, and the times from which a step's size follows;
    sequences and leases belong to Sessions and to the cache. Called by Sessions (work appears and
    ends) and by EngineLoop (plan, collect), on the thread of the loop. A sequence is always
    in at most one queue, and has at most one row in a step. A turn that is retracted while a step
    is planned has no row in it, and is queued again with the next step. A plan is made from
    counters alone, without clock or device. No turn takes pages from the oldest one.
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
        cache: reserves pages for the rows and evicts idle ones; shared with EngineLoop and
            Sessions.
        max_batched_tokens: maximum tokens of a step, all rows together.
        max_rows: maximum rows of a step.
        max_group_share: maximum share of the rows, and of the pages, for one group; 1: no limit but
            the shares of other groups.
        samples_late: as in `Geometry`.
        speculation: drafts ids for the live rows. None: no row has drafts.
        """
        self.cache = cache
        self._samples_late = samples_late
        self._speculation = speculation
        self._max_group_share = max_group_share
        self.max_batched_tokens = max_batched_tokens
        self.max_rows = max_rows
        self.retractions = 0
        self._steps = 0
        """Number of steps planned."""
        self._arrivals = 0
        """Number of turns added."""
        self._step_time = StepTimeModel()
        self._prefill_s = PREFILL_S_MAX
        """Time that prefill chunks may take in the next step, in seconds. Set from `_live_load`
        after a step with live rows (decodes and short turns), and increased in each step without
        any."""
        self._discardable_s = DISCARDED_S_MAX
        """Time that may be spent on steps which are then discarded, in seconds."""
        self.has_new_short_turn = False
        """Whether a short turn was added after the last plan."""
        self._step_s = 0.0
        """Moving average of the seconds of a step."""
        self._live_load = StepLoad()
        """Load of the live rows (decodes and short turns) in the last step that had any; empty once
        `_prefill_s` was computed from it."""
        self._turns: dict[Sequence, None] = {}
        """Sequences with a turn, oldest turn first."""
        self._admitted: dict[Sequence, None] = {}
        """Sequences with an admitted turn: they are queued for prefill, or decode."""
        self._groups: dict[str, int] = {}
        """Number of admitted turns of each group that has any."""
        self._retracted: dict[Sequence, None] = {}
        """Sequences with a turn that was retracted and not admitted again."""
        self._unqueued: list[Sequence] = []
        """Sequences that were retracted since the last step was planned. They are not in a queue,
        so that no list of turns changes while it is made."""
        self._short = TurnQueue()
        """Turns that owe at most SHORT_TURN_TOKENS_MAX tokens of their prompt."""
        self._long = TurnQueue()
        """Turns that owe more."""
        self._refused_short = Refusals(self._queue_state)
        """Groups whose first short turns were refused admission."""
        self._refused_long = Refusals(self._queue_state)
        """The same for long turns."""
        self._appends: dict[Sequence, None] = {}
        """Sequences without a turn whose log has ids to prefill."""
        self._overdue: Sequence | None = None
        """The first admitted turn for which the last step had no room."""
        self._prefixes = PrefixesInFlight(cache.page_size, is_used=cache.shares_pages_in_flight)
        self._admission = Admission(cache)
        self._group_admission = GroupAdmission(
            cache,
            self._admission,
            self._admitted,
            self._retracted,
            self.retract,
            turns_max=TURNS_PER_ROW_MAX * max_rows,
            max_group_share=max_group_share,
        )
        self._fault_isolation = FaultIsolation()

    # ---- work -----------------------------------------------------------------------------

    def add_turn(self, sequence: Sequence) -> None:
        turn = sequence.turn
        assert turn is not None
        self._appends.pop(sequence, None)
        self._turns[sequence] = None
        self._arrivals += 1
        turn.arrival, turn.last_step = self._arrivals, self._steps
        if sequence.turn_count == 1:
            self._match_shared(sequence)
        tokens = _tokens_to_prefill(sequence)
        turn.due_step = self._steps + self._patience_steps(turn, tokens)
        self.has_new_short_turn |= tokens <= SHORT_TURN_TOKENS_MAX
        self._push(sequence, tokens)

    def _patience_steps(self, turn: Turn, tokens: int) -> int:
        """Return the steps for which a turn with `tokens` to prefill may be overtaken: AGING times
        those that it takes alone, and no more than its deadline allows."""
        alone = max(-(-tokens // self.max_batched_tokens), 1)
        deadline_ms = turn.sampling.deadline_ms
        if deadline_ms is None or not self._step_s:
            return AGING * alone
        deadline_steps = int(deadline_ms / 1000 / self._step_s)
        return min(AGING * alone, max(deadline_steps - alone, 0))

    def add_append(self, sequence: Sequence) -> None:
        """Add a sequence without a turn whose log has ids to prefill."""
        self._appends[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        self._appends.pop(sequence, None)
        if sequence in self._turns:
            del self._turns[sequence]
            self._pop_admitted(sequence)
            self._retracted.pop(sequence, None)
            self._short.remove(sequence)
            self._long.remove(sequence)

    @property
    def turns(self) -> int:
        return len(self._turns)

    @property
    def waiting_turns(self) -> int:
        """Number of turns that are not admitted yet."""
        return len(self._turns) - len(self._admitted)

    # ---- one step -------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Plan the next step and reserve the pages of its rows in the cache."""
        self.has_new_short_turn = False
        if not self._fault_isolation:
            plan = self._plan(None)
            if not plan.rows and self._turns and not self.cache.has_in_flight():
                self._refused_short.full.clear()
                self._refused_long.full.clear()
                plan = self._plan(None)
        else:
            plan = StepPlan([], StepLoad())
            for selection in self._fault_isolation.row_selections(self._has_work):
                overdue = self._overdue
                plan = self._plan(selection.sequence_filter)
                if selection.has_only_suspects:
                    self._overdue = overdue
                if plan.rows:
                    self._fault_isolation.record_selection(selection)
                    break
        if plan.rows:
            self._steps += 1
        return plan

    def _plan(self, sequence_filter: SequenceFilter | None) -> StepPlan:
        self._queue_retracted()
        budget = StepBudget(self.max_batched_tokens, self.max_rows)
        rows: list[ScheduledRow] = []
        claimant = self._group_admission.claimant
        if claimant is not None:
            if self.cache.has_in_flight():
                return StepPlan(rows, budget.load)
            self._overdue, self._group_admission.claimant = claimant, None
        decoding = self._decoding_turns(sequence_filter)
        if self._short.turns or self._long.turns or self._appends:
            popped = PoppedTurns(self._steps, sequence_filter)
            has_live_rows = self._plan_with_prefill(decoding, popped, budget, rows)
            for sequence in popped.turns:
                if sequence.turn is not None and (
                    sequence.owed > 1 or not sequence.turn.is_admitted
                ):
                    self._queue(sequence)
            if not has_live_rows and sequence_filter is None:
                return StepPlan(rows, budget.load, self._discardable_s)
        else:
            self._overdue = None
            live = self._rotate(decoding, budget.remaining_rows)
            if self._schedule_all(live, budget, rows) and rows:
                self._live_load = load = budget.load
                return StepPlan(rows, load)
        return StepPlan(rows, budget.load)

    def _plan_with_prefill(
        self,
        decoding: list[Sequence],
        popped: PoppedTurns,
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> bool:
        """Schedule decodes, short turns, and prefill chunks beside them. Returns whether the step
        has any rows but these chunks."""
        self._prefixes.begin_step()
        waiting, has_live_rows = self._take_overdue(popped), True
        long: list[Sequence] = []
        blocked_groups: set[str] = set()
        if self._schedule_all(waiting, budget, rows) and self._schedule_live(
            decoding, waiting, popped, blocked_groups, budget, rows
        ):
            load = budget.load
            has_live_rows = load.rows > 0
            self._live_load = load if has_live_rows else self._live_load
            if self._long.turns or self._appends:
                limit_s = self._step_time_limit(load)
                if self._schedule_chunks(long, popped, blocked_groups, limit_s, budget, rows):
                    self._schedule_appends(popped, limit_s, budget, rows)
        if not budget and not long:
            first = popped.pop(self._long)
            long += [first] if first is not None and self._try_admit(first) else []
        number = self._steps + 1
        missed = [s for s in (*waiting, *long) if s.turn is not None and s.turn.last_step != number]
        self._overdue = min(missed, key=arrival) if missed else None
        return has_live_rows

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Record the seconds that a planned step took on the device."""
        self._step_time.observe(load, seconds)
        self._step_s += (seconds - self._step_s) * STEP_S_WEIGHT
        self._discardable_s = min(self._discardable_s + seconds * DISCARDED_SHARE, DISCARDED_S_MAX)

    def observe_discarded(self, seconds: float) -> None:
        """Record the seconds that were spent on a step which was discarded for a short turn."""
        self._discardable_s -= seconds

    def observe_output(self, tokens: int) -> None:
        """Record the length of the output of a turn that has ended."""
        self._admission.observe_output(tokens)

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
        """Make the pages of a turn evictable. The turn continues when there is room; its ids
        stay."""
        assert sequence.turn is not None
        self.retractions += 1
        self._admission.record_retraction(self._steps)
        self._revoke_admission(sequence)
        self.cache.mark_idle(sequence.lease)

    def reset_kv(self) -> None:
        """Discard all KV, so that every turn restarts. Nothing may be in flight."""
        for sequence in list(self._admitted):
            self._revoke_admission(sequence)
        self.cache.reset()

    # ---- queues ---------------------------------------------------------------------------

    def _has_work(self, sequence: Sequence) -> bool:
        return sequence in self._turns or sequence in self._appends

    def _queue(self, sequence: Sequence) -> None:
        """Queue a turn for the rest of its prefill, unless it is queued."""
        if sequence not in self._short.turns and sequence not in self._long.turns:
            self._push(sequence, _tokens_to_prefill(sequence))

    def _queue_retracted(self) -> None:
        """Queue the turns that were retracted since the last step was planned."""
        unqueued, self._unqueued = self._unqueued, []
        for sequence in unqueued:
            if sequence in self._retracted:
                self._queue(sequence)

    def _push(self, sequence: Sequence, tokens: int) -> None:
        queue = self._short if tokens <= SHORT_TURN_TOKENS_MAX else self._long
        queue.push(sequence, tokens)

    def _revoke_admission(self, sequence: Sequence) -> None:
        assert sequence.turn is not None
        sequence.turn.is_admitted = False
        self._pop_admitted(sequence)
        self._retracted[sequence] = None
        self._unqueued.append(sequence)

    def _pop_admitted(self, sequence: Sequence) -> None:
        if sequence in self._admitted:
            del self._admitted[sequence]
            group, turns = sequence.group, self._groups.pop(sequence.group)
            if turns > 1:
                self._groups[group] = turns - 1

    def _decoding_turns(self, sequence_filter: SequenceFilter | None) -> list[Sequence]:
        """List the admitted turns that owe only the id drawn last and can launch it now. If
        `sequence_filter` is given, only those that it accepts."""
        decoding: list[Sequence] = []
        samples_late, speculation = self._samples_late, self._speculation
        for sequence in self._admitted:
            turn, owed = sequence.turn, sequence.owed
            assert turn is not None
            if owed > 1:
                self._queue(sequence)
            elif (
                owed
                and turn.launched_tokens < turn.max_output_tokens
                and (samples_late or not sequence.promised or turn.can_run_ahead)
                and (speculation is None or not self._waits_for_id(sequence))
            ):
                decoding.append(sequence)
        return decoding if sequence_filter is None else list(filter(sequence_filter, decoding))

    def _waits_for_id(self, sequence: Sequence) -> bool:
        """Return whether a turn whose last id is being drawn waits for it, to draft from it."""
        return (
            self._speculation is not None
            and sequence.promised > 0
            and not self._fault_isolation
            and self._speculation.waits_for_id(sequence)
        )

    def _rotate(self, live: list[Sequence], rows: int) -> list[Sequence]:
        """Order the live turns, if they are more than `rows`: those first that have waited longest
        for a row, shared among groups. Leaves out those above the maximum of their group."""
        if self._max_group_share < 1:
            live = self._limit_groups(live)
        if len(live) <= rows:
            return live
        ordered = sorted(live, key=_last_step)
        return ordered if len(self._groups) == 1 else interleave_groups(ordered)

    def _limit_groups(self, live: list[Sequence]) -> list[Sequence]:
        rows_max = max(int(self.max_rows * self._max_group_share), 1)
        rows: Counter[str] = Counter()
        chosen: set[Sequence] = set()
        for sequence in sorted(live, key=_last_step):
            rows[sequence.group] += 1
            if rows[sequence.group] <= rows_max:
                chosen.add(sequence)
        return [sequence for sequence in live if sequence in chosen]

    def _take_overdue(self, popped: PoppedTurns) -> list[Sequence]:
        """Take the turn for which the last step had no room, if it still needs one."""
        sequence = self._overdue
        if sequence is None or not popped.accepts(sequence):
            return []
        for queue in (self._short, self._long):
            if sequence in queue.turns:
                popped.take(sequence, queue)
                return [sequence] if self._try_admit(sequence) and sequence.owed else []
        return []

    def _take_short(
        self, popped: PoppedTurns, blocked_groups: set[str], budget: StepBudget
    ) -> list[Sequence]:
        """Take the short turns that have room in the step, and admit them."""
        short: list[Sequence] = []
        tokens = budget.remaining_tokens
        refusals = self._refused_short
        refusals.begin_search()
        blocked_groups |= refusals.full
        for sequence in self._candidates(self._short, popped, refusals.full):
            if sequence.turn_count == 1:
                self._match_shared(sequence)
            if self._prefixes.are_computed_for(sequence):
                continue
            if not self._try_admit(sequence):
                refusals.add(sequence)
                self._block_group(sequence, blocked_groups)
            elif sequence.owed:
                short.append(sequence)
                tokens -= sequence.owed
                self._prefixes.add(sequence)
            if tokens <= 0 or len(short) == budget.remaining_rows:
                break
        return short

    def _candidates(
        self, queue: TurnQueue, popped: PoppedTurns, skipped_groups: Collection[str]
    ) -> Iterator[Sequence]:
        """Pop the turns of a queue in order, without those of groups that are, or become, skipped;
        then the other admitted turns, which do not wait for turns that are not admitted."""
        for _ in range(self.max_rows + REFUSED_TURNS_MAX):
            sequence = popped.pop(queue, skipped_groups)
            if sequence is None:
                break
            yield sequence
        for sequence in list(self._admitted) if queue.turns else ():
            if sequence in queue.turns and popped.accepts(sequence):
                popped.take(sequence, queue)
                yield sequence

    def _block_group(self, refused: Sequence, blocked_groups: set[str]) -> None:
        """Block long turns of a group in this step if an overdue turn of it was refused admission:
        they would take the room that it waits for."""
        if refused.turn is not None and refused.turn.due_step <= self._steps:
            blocked_groups.add(refused.group)

    # ---- admission ------------------------------------------------------------------------

    def _try_admit(self, sequence: Sequence) -> bool:
        """Admit a turn if there is room for it, or if it is the oldest. Returns whether the turn is
        admitted."""
        turn = sequence.turn
        assert turn is not None
        if turn.is_admitted:
            return True
        if sequence.in_flight:
            return False
        if not self._is_oldest(sequence) and self._admitted and not self._has_room(sequence):
            return False
        cache, lease, prompt = self.cache, sequence.lease, len(sequence.ids)
        self._restore_kv(sequence, match_shared=sequence.turn_count == 1)
        cache.rewind(lease, prompt - 1)
        turn.is_admitted = True
        self._admitted[sequence] = None
        self._groups[sequence.group] = self._groups.get(sequence.group, 0) + 1
        if sequence in self._retracted:
            del self._retracted[sequence]
        else:
            self._admission.record_admission(sequence, self._steps)
        if turn.cached_tokens is None:
            turn.cached_tokens = lease.committed
            turn.residency = sequence.worst_residency
        return True

    def _has_room(self, sequence: Sequence) -> bool:
        """Return whether one more turn can be admitted. A turn that was refused is considered again
        when pages became available, or after RETRY_STEPS."""
        turn = sequence.turn
        assert turn is not None
        if turn.refused_at == self._room_state():
            return False
        has_other_groups = len(self._groups) > (sequence.group in self._groups)
        waiting = len(self._turns) - len(self._admitted) - 1
        if has_other_groups or self._max_group_share < 1:
            has_room = self._group_admission.has_room(sequence, waiting, self._steps)
        else:
            turns_max = TURNS_PER_ROW_MAX * self.max_rows
            has_room = len(self._admitted) < turns_max and self._admission.has_room(
                sequence, self._admitted, self._retracted, waiting=waiting, step=self._steps
            )
        is_refused = not has_room and sequence is not self._group_admission.claimant
        turn.refused_at = self._room_state() if is_refused else None
        return has_room

    def _room_state(self) -> tuple[int, int]:
        return self.cache.room_version, self._steps // RETRY_STEPS

    def _queue_state(self) -> tuple[int, ...]:
        return self.cache.room_version, self._steps // RETRY_STEPS, self._arrivals

    def _restore_kv(self, sequence: Sequence, *, match_shared: bool = False) -> None:
        """Mark the lease busy and restore all available KV of the log: spilled pages are recalled;
        shared pages are matched if KV is missing that was computed, or if `match_shared`."""
        cache, lease, length = self.cache, sequence.lease, len(sequence.ids)
        cache.mark_busy(lease)
        recalled = bool(lease.host_pages) and cache.recall(lease)
        known = min(sequence.committed_high_water, length)
        if not lease.committed or lease.committed < known or match_shared:
            self._match(sequence)
        residency = _residency(lease.committed, lost=lease.committed < known, recalled=recalled)
        if RESIDENCY_ORDER.index(residency) > RESIDENCY_ORDER.index(sequence.worst_residency):
            sequence.worst_residency = residency

    def _match_shared(self, sequence: Sequence) -> None:
        """Match the shared pages of a first prompt again, because others may have published more of
        it meanwhile."""
        turn, cache, lease = sequence.turn, self.cache, sequence.lease
        assert turn is not None
        if sequence.in_flight:
            return
        known = lease.committed
        self._match(sequence)
        if not turn.is_admitted:
            cache.mark_idle(lease)
        elif lease.committed > known:
            cache.rewind(lease, len(sequence.ids) - 1)

    def _match(self, sequence: Sequence) -> None:
        cache, ids = self.cache, sequence.ids
        cache.match(sequence.lease, ids, cache.match_end(len(ids)), sequence.publish_to)

    # ---- rows -----------------------------------------------------------------------------

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
        step: it is full, or the pages that a row needs are still in flight.

        Most rows of an engine are decodes without drafts, for which this method has a shortcut."""
        reserve, number = self.cache.reserve, self._steps + 1
        has_drafts = self._speculation is not None
        for sequence in sequences:
            if budget.remaining_tokens <= 0 or budget.remaining_rows <= 0:
                return False
            turn, lease, owed = sequence.turn, sequence.lease, sequence.owed
            assert turn is not None
            if owed == 1 and turn.is_admitted and not has_drafts and reserve(lease, 1):
                start = lease.committed + lease.reserved - 1
                budget.spend(start, 1)
                turn.last_step = number
                can_draw = turn.launched_tokens < turn.max_output_tokens
                rows.append(ScheduledRow(sequence, start, 1, turn if can_draw else None))
                continue
            count = min(owed, SHORT_TURN_TOKENS_MAX, budget.remaining_tokens)
            if not count or not self._schedule_turn(sequence, count, budget, rows):
                return False
        return True

    def _schedule_live(
        self,
        decoding: list[Sequence],
        waiting: list[Sequence],
        popped: PoppedTurns,
        blocked_groups: set[str],
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> bool:
        """Schedule decodes and short turns, and add the latter to `waiting`. As some may not have
        the pages that they need, short turns are taken until the step is full. Returns False if
        nothing more can be planned in this step."""
        live = decoding
        while True:
            short = self._take_short(popped, blocked_groups, budget)
            waiting += short
            live = self._rotate(live + short, budget.remaining_rows)
            if not self._schedule_all(live, budget, rows):
                return False
            if not short or not budget or not (self._short.turns or self._refused_short.full):
                return True
            live = []

    def _schedule_chunks(
        self,
        long: list[Sequence],
        popped: PoppedTurns,
        blocked_groups: set[str],
        limit_s: float,
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> bool:
        """Schedule chunks of long turns within `limit_s`, and list in `long` those that were next.
        Returns False if nothing more can be planned in this step."""
        if not self._long.turns:
            return bool(budget)
        refusals = self._refused_long
        refusals.begin_search()
        blocked_groups |= refusals.full
        for sequence in self._candidates(self._long, popped, blocked_groups) if budget else ():
            if sequence.turn_count == 1:
                self._match_shared(sequence)
            if self._prefixes.are_computed_for(sequence):
                continue
            if not self._try_admit(sequence):
                refusals.add(sequence)
                blocked_groups |= refusals.full
                self._block_group(sequence, blocked_groups)
                continue
            if not sequence.owed:
                continue
            long.append(sequence)
            is_first = len(long) == 1
            fits = self._chunk_tokens(sequence, limit_s, budget, is_first=is_first)
            count = min(sequence.owed, fits)
            if not count:
                break
            if not self._schedule_turn(sequence, count, budget, rows):
                return False
            if not budget:
                break
        return bool(budget)

    def _chunk_tokens(
        self, sequence: Sequence, limit_s: float, budget: StepBudget, *, is_first: bool = True
    ) -> int:
        """Return the tokens of a prefill chunk that fit into `limit_s`, at least CHUNK_TOKENS_MIN
        or CHUNK_TOKENS_MIN_ALONE for the first one of a step."""
        start = sequence.launched
        fits = self._step_time.tokens_within(limit_s, budget.load, start, budget.remaining_tokens)
        least = CHUNK_TOKENS_MIN if budget.load.rows else CHUNK_TOKENS_MIN_ALONE
        return min(max(fits, least if is_first else 0), budget.remaining_tokens)

    def _schedule_turn(
        self, sequence: Sequence, count: int, budget: StepBudget, rows: list[ScheduledRow]
    ) -> bool:
        """Schedule `count` tokens of a turn, unless the turn was retracted in this step or may not
        take the pages it needs from others. Returns False if nothing more can be planned in this
        step, because pages are still in flight."""
        assert sequence.turn is not None
        if not sequence.turn.is_admitted:
            return True
        if count > 1 and self.cache.has_components:
            count = self.cache.components.fit_row(sequence.lease, count)
        if self._speculation is not None:
            drafts = self._propose_drafts(self._speculation, sequence, count, budget)
            if drafts and self.cache.reserve(sequence.lease, count + len(drafts)):
                self._add_row(sequence, count, budget, rows, drafts)
                return True
        while not self.cache.reserve(sequence.lease, count):
            later = self._group_admission.later_holders(sequence)
            victim = next((s for s in later if not s.in_flight), None)
            if victim is not None:
                self.retract(victim)
            elif later:
                return False
            elif sequence is not self._group_admission.oldest_admitted():
                return True
            elif self.cache.has_in_flight():
                return False
            else:
                self._release_last_page(sequence)
        self._add_row(sequence, count, budget, rows)
        return True

    def _propose_drafts(
        self, speculation: Speculation, sequence: Sequence, count: int, budget: StepBudget
    ) -> "array[int]":
        """Return the drafts behind the next `count` tokens of a turn, if these are known and the
        last ones of its log. A token is left for each further row of the step."""
        lease = sequence.lease
        if lease.launched + count < len(sequence.ids) or sequence.promised or self._fault_isolation:
            return NO_DRAFTS
        room = budget.remaining_tokens - count - (budget.remaining_rows - 1)
        drafts = speculation.propose(sequence, room)
        if drafts:
            fitting = self.cache.components.fit_row(lease, count + len(drafts)) - count
            drafts = drafts[: max(fitting, 0)]
        return drafts

    def _add_row(
        self,
        sequence: Sequence,
        count: int,
        budget: StepBudget,
        rows: list[ScheduledRow],
        drafts: "array[int]" = NO_DRAFTS,
    ) -> None:
        """Add a row of `count` tokens, for which pages are reserved, and of `drafts`."""
        extra = len(drafts)
        reach = sequence.lease.launched - extra
        start = reach - count
        budget.spend(start, count + extra)
        turn = sequence.turn
        if turn is not None:
            turn.last_step = self._steps + 1
        if count > 1:
            self._prefixes.add(sequence)
            self._short.charge(sequence, count)
            self._long.charge(sequence, count)
        draws = reach == sequence.promised_end and sequence.can_draw
        rows.append(ScheduledRow(sequence, start, count + extra, turn if draws else None, drafts))

    def _release_last_page(self, sequence: Sequence) -> None:
        """Release the last, partly used page of the only turn in a full pool. The page is shared
        and no free page is left to copy it to, so its tokens are recomputed."""
        size = self.cache.page_size
        assert sequence.committed % size, "the oldest turn cannot have the pages it needs"
        self.cache.rewind(sequence.lease, sequence.committed // size * size)

    def _is_oldest(self, sequence: Sequence) -> bool:
        return next(iter(self._turns)) is sequence

    def _schedule_appends(
        self,
        popped: PoppedTurns,
        limit_s: float,
        budget: StepBudget,
        rows: list[ScheduledRow],
    ) -> None:
        """Schedule chunks of appends, firm ones before provisional ones. A sequence with deferred
        commands is skipped while tokens of it are in flight, so that these commands can be
        applied."""
        appends = filter(popped.accepts, self._appends)
        for sequence in sorted(appends, key=lambda s: s.log.provisional_start is not None):
            if not budget:
                return
            if sequence.in_flight and sequence.deferred:
                continue
            cache, lease = self.cache, sequence.lease
            if not sequence.in_flight:
                self._restore_kv(sequence, match_shared=sequence.publish_to > 0)
            if self._prefixes.are_computed_for(sequence):
                if not sequence.in_flight:
                    cache.mark_idle(lease)
                continue
            owed = cache.prefill_end(len(sequence.ids)) - lease.launched
            count = min(owed, self._chunk_tokens(sequence, limit_s, budget))
            count = cache.components.fit_row(lease, count)
            if count > 0 and cache.reserve(lease, count):
                self._add_row(sequence, count, budget, rows)
            elif not sequence.in_flight:
                cache.mark_idle(lease)
                del self._appends[sequence]


def _tokens_to_prefill(sequence: Sequence) -> int:
    """Return the tokens of the log whose KV is neither computed, nor on the host, nor in flight."""
    lease = sequence.lease
    return len(sequence.ids) - max(lease.resident_tokens, lease.launched)


def _last_step(sequence: Sequence) -> int:
    assert sequence.turn is not None
    return sequence.turn.last_step


def _residency(committed: int, *, lost: bool, recalled: bool) -> KVResidency:
    if lost:
        return "recomputed"
    if recalled:
        return "host"
    return "hot" if committed else "none"

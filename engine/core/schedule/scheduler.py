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
from continuo.engine.core.schedule.budget import Budget, Load, allot
from continuo.engine.core.schedule.fault_isolation import Allowed, Isolation
from continuo.engine.core.schedule.step_time_model import StepTime
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import Residency

SHORT_TOKENS = 64
"""A turn that owes no more than this is never cut: nobody's step grows much by it."""
CHUNK_TOKENS_MIN = 16
"""A cold prompt gets at least this much of a step, however busy."""
RESIDENCIES: tuple[Residency, ...] = ("none", "hot", "host", "recomputed")
"""From nothing to bring, to the longest way."""
STEP_S_MAX = 0.05
"""Seconds a step may take with cold work alone: what a newcomer may have to wait for."""
STEP_S_MIN = 0.002
"""Seconds that cold work may always add to a step."""
COLD_SHARE = 0.5
"""How much longer a step with live turns may become by cold work."""
COLD_GROWTH = 1.5
"""From one step without live turns to the next, how much more cold work it may do."""


class Work(NamedTuple):
    """`tokens` more of a sequence; `turn` draws an id from the last of them, if given."""

    sequence: Sequence
    tokens: int
    turn: Turn | None

    @property
    def wanted(self) -> bool:
        """Not if all it does is draw an id for a turn that has ended."""
        return self.turn is None or self.turn is self.sequence.turn


class Plan(NamedTuple):
    """A step: its rows, and what they make the device do."""

    works: list[Work]
    load: Load


class Scheduler:
    def __init__(self, cache: SessionAwareCache, tokens: int, rows: int) -> None:
        self.cache = cache
        self.tokens = tokens
        self.rows = rows
        self.retractions = 0
        self._time = StepTime()
        self._cold_s = STEP_S_MAX
        """Seconds that the next step may give to cold work, if `_live` does not set them anew."""
        self._live = Load()
        """What was live in the last step that served live turns, until it has set `_cold_s`."""
        self._turns: dict[Sequence, None] = {}
        """Sequences with a turn, by the age of the turn."""
        self._appends: dict[Sequence, None] = {}
        """Sequences that owe ids nobody waits for."""
        self._overdue: Sequence | None = None
        """The oldest waiting turn, if the last step had nothing for it."""
        self._isolation = Isolation()

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

    def plan(self) -> Plan:
        """The rows of the next step. Every count in it is reserved in the cache already."""
        if not self._isolation:
            return self._plan(None)
        plan = Plan([], Load())
        for share in self._isolation.shares(self._owes):
            overdue = self._overdue
            plan = self._plan(share.allowed)
            if share.apart:
                self._overdue = overdue
            if plan.works:
                self._isolation.took(share)
                break
        return plan

    def _plan(self, allowed: Allowed | None) -> Plan:
        budget = Budget(self.tokens, self.rows)
        works: list[Work] = []
        decoding, waiting = self._candidates(allowed)
        appends = self._appends if allowed is None else list(filter(allowed, self._appends))
        if waiting or appends:
            self._plan_beside(decoding, waiting, appends, budget, works)
        else:
            self._overdue = None
            if self._take_all(decoding, budget, works) and works:
                self._live = budget.load
        return Plan(works, budget.load)

    def _plan_beside(
        self,
        decoding: list[Sequence],
        waiting: list[Sequence],
        appends: Collection[Sequence],
        budget: Budget,
        works: list[Work],
    ) -> None:
        """The decodes, and what is to be prefilled beside them."""
        waiting = [s for s in waiting if self._admit(s)]
        overdue = [s for s in waiting[:1] if s is self._overdue]
        rest = waiting[len(overdue) :]
        short = [s for s in rest if s.owed <= SHORT_TOKENS]
        long = [s for s in rest if s.owed > SHORT_TOKENS]
        if self._take_all(overdue, budget, works) and self._take_all(
            decoding + short, budget, works
        ):
            live = budget.load
            self._live = live if live.rows else self._live
            limit_s = self._time_for(live) if long or appends else 0.0
            if self._take_cut(long, limit_s, budget, works):
                self._fill_with_appends(appends, limit_s, budget, works)
        oldest = waiting[0] if waiting else None
        self._overdue = None if any(work.sequence is oldest for work in works) else oldest

    def observe(self, load: Load, seconds: float) -> None:
        """What a planned step has cost on the device."""
        self._time.observe(load, seconds)

    def failed(self, reaches: dict[Sequence, int]) -> Sequence | None:
        """A step has raised an exception: see Isolation."""
        return self._isolation.failed(reaches)

    def isolate(self, sequence: Sequence, more: int) -> None:
        """Plan steps of its own for a sequence, until it has KV of its ids and of `more`."""
        self._isolation.suspect(sequence, more)

    @property
    def searching(self) -> bool:
        """Whether steps are limited in order to find a bad row."""
        return bool(self._isolation) and self._isolation.searching(self._owes)

    def retract(self, sequence: Sequence) -> None:
        """The turn gives back all its pages and starts over when there is room; its ids stay."""
        assert sequence.turn is not None
        self.retractions += 1
        sequence.turn.admitted = False
        self.cache.retract(sequence.lease)

    def forget(self) -> None:
        """All KV is lost, and nothing is in flight: every turn starts over."""
        for sequence in self._turns:
            assert sequence.turn is not None
            sequence.turn.admitted = False
        self.cache.forget()

    # ---- inside ---------------------------------------------------------------------------

    def _owes(self, sequence: Sequence) -> bool:
        return sequence in self._turns or sequence in self._appends

    def _candidates(self, allowed: Allowed | None) -> tuple[list[Sequence], list[Sequence]]:
        """(turns that owe the one id they have just drawn, turns that owe more)."""
        decoding: list[Sequence] = []
        waiting: list[Sequence] = []
        for sequence in self._turns if allowed is None else filter(allowed, self._turns):
            turn = sequence.turn
            assert turn is not None
            owed = sequence.owed
            if owed > 1 or not turn.admitted:
                waiting.append(sequence)
            elif owed and turn.ordered < turn.limit and (turn.runs_ahead or not sequence.promised):
                decoding.append(sequence)
        return decoding, waiting

    def _admit(self, sequence: Sequence) -> bool:
        turn = sequence.turn
        assert turn is not None
        if turn.admitted:
            return True
        if sequence.flying:
            return False
        cache, lease, prompt = self.cache, sequence.lease, len(sequence.ids)
        pages = -(-(prompt + 1) // cache.page_size)
        if not self._is_oldest(sequence) and pages > cache.attainable():
            return False
        self._bring(sequence, prompt - 1, look=sequence.turns == 1)
        cache.rewind(lease, prompt - 1)
        turn.admitted = True
        if turn.cached is None:
            turn.cached = lease.committed
            turn.residency = sequence.found
        return True

    def _bring(self, sequence: Sequence, limit: int, *, look: bool = False) -> None:
        """The lease awake, with all KV of ids[:limit] that there is: what was spilled is recalled,
        and what is shared is taken where the lease has nothing, or when told to `look`."""
        cache, lease = self.cache, sequence.lease
        cache.wake(lease)
        recalled = bool(lease.host) and cache.recall(lease)
        if not lease.committed or look:
            cache.match(lease, sequence.ids, limit)
        lost = lease.committed < min(sequence.reached, limit)
        found = _residency(lost, recalled, lease.committed)
        if RESIDENCIES.index(found) > RESIDENCIES.index(sequence.found):
            sequence.found = found

    def _time_for(self, live: Load) -> float:
        """Seconds that a step may take with cold work beside what is live. Live turns come back at
        once: a step of cold work alone is as short as beside them, then longer step by step."""
        live_s = self._time.predict(self._live)
        if self._live.rows:
            self._cold_s = min(max(live_s * COLD_SHARE, STEP_S_MIN), STEP_S_MAX)
            self._live = Load()
        if live.rows:
            return live_s + self._cold_s
        limit_s, self._cold_s = self._cold_s, min(self._cold_s * COLD_GROWTH, STEP_S_MAX)
        return limit_s

    def _take_all(self, sequences: list[Sequence], budget: Budget, works: list[Work]) -> bool:
        """A row for each. False: the step has no room for one of them, or what it needs is still in
        flight; nothing more can be planned in this step."""
        for sequence in sequences:
            count = min(sequence.owed, SHORT_TOKENS, budget.tokens)
            if not count or not budget.rows or not self._take(sequence, count, budget, works):
                return False
        return True

    def _take_cut(
        self, sequences: list[Sequence], limit_s: float, budget: Budget, works: list[Work]
    ) -> bool:
        """Chunks of long prompts, within the time."""
        sequences = sequences[: budget.rows]
        if not sequences:
            return True
        tokens = self._tokens_for(sequences[0], limit_s, budget)
        for sequence, count in zip(
            sequences, allot([s.owed for s in sequences], tokens), strict=True
        ):
            if count and not self._take(sequence, count, budget, works):
                return False
        return True

    def _tokens_for(self, sequence: Sequence, limit_s: float, budget: Budget) -> int:
        if not self._time.fitted:
            return budget.tokens
        start = sequence.launched
        fits = self._time.tokens_within(limit_s, budget.load, start, budget.tokens)
        return min(max(fits, CHUNK_TOKENS_MIN), budget.tokens)

    def _take(self, sequence: Sequence, count: int, budget: Budget, works: list[Work]) -> bool:
        """Reserves `count` tokens for a turn, unless an older one has just taken its pages. False:
        nothing more can be planned in this step, because what it needs is still in flight."""
        assert sequence.turn is not None
        if not sequence.turn.admitted:
            return True
        while not self.cache.grow(sequence.lease, count):
            younger = self._younger(sequence)
            victim = next((s for s in younger if not s.flying), None)
            if victim is not None:
                self.retract(victim)
            elif younger:
                return False
            elif not self._is_oldest(sequence):
                return True
            elif self.cache.in_flight():
                return False
            else:
                self._make_do(sequence)
        self._add(sequence, count, budget, works)
        return True

    def _add(self, sequence: Sequence, count: int, budget: Budget, works: list[Work]) -> None:
        reach = sequence.lease.reach
        budget.spend(reach - count, count)
        draws = reach == sequence.end and sequence.wants_to_draw
        works.append(Work(sequence, count, sequence.turn if draws else None))

    def _make_do(self, sequence: Sequence) -> None:
        """The pool is full of this one turn's pages and lacks only one to copy its last, shared
        page to: that page is let go and computed again."""
        size = self.cache.page_size
        assert sequence.committed % size, "the oldest turn cannot have the pages it needs"
        self.cache.rewind(sequence.lease, sequence.committed // size * size)

    def _is_oldest(self, sequence: Sequence) -> bool:
        return next(iter(self._turns)) is sequence

    def _younger(self, sequence: Sequence) -> list[Sequence]:
        """Younger turns that hold pages, youngest first."""
        found: list[Sequence] = []
        for other in reversed(self._turns):
            if other is sequence:
                break
            if other.turn is not None and other.turn.admitted and other.lease.pages:
                found.append(other)
        return found

    def _fill_with_appends(
        self, appends: Collection[Sequence], limit_s: float, budget: Budget, works: list[Work]
    ) -> None:
        """Firm ones before provisional ones. What is asked of one meanwhile waits until nothing of
        it is in flight."""
        for sequence in sorted(appends, key=lambda s: s.log.firm is not None):
            if not budget:
                return
            if sequence.flying and sequence.deferred:
                continue
            cache, lease = self.cache, sequence.lease
            if not sequence.flying:
                self._bring(sequence, len(sequence.ids))
            count = min(sequence.owed, self._tokens_for(sequence, limit_s, budget))
            if count > 0 and cache.grow(lease, count):
                self._add(sequence, count, budget, works)
            elif not sequence.flying:
                cache.rest(lease)
                del self._appends[sequence]


def _residency(lost: bool, recalled: bool, committed: int) -> Residency:
    if lost:
        return "recomputed"
    if recalled:
        return "host"
    return "hot" if committed else "none"

"""Packing: how much of each sequence a step computes. StepRows: the rows so far; Packer: adds them,
and reserves their pages.

A turn that lacks pages takes them from idle leases, then from turns after it, which are retracted.
No turn takes pages from the oldest one, so turns always finish.

A row at the end of the log may have drafts (speculation), of tokens and pages that no other turn
needs. No row has drafts while a faulty one is searched.
"""

from array import array
from collections import Counter

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.fault_isolation import FaultIsolation
from continuo.engine.core.prefixes_in_flight import PrefixesInFlight
from continuo.engine.core.schedule.admission import Admission
from continuo.engine.core.schedule.step import ScheduledRow, StepLoad, StepPlan
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation import NO_DRAFTS, Speculation

SHORT_TURN_TOKENS_MAX = 64
"""Maximum owed (not yet launched) tokens of a short turn. A short turn is not split into chunks,
because it hardly prolongs a step."""


class StepRows:
    """The rows of a step, at most one of each sequence, and the tokens and rows that are left."""

    def __init__(self, number: int, tokens: int, rows: int) -> None:
        """`tokens`, `rows`: the most of all rows together."""
        self.number = number
        self.remaining_tokens = self._tokens = tokens
        self.remaining_rows = rows
        self._attention = 0
        self.rows: dict[Sequence, ScheduledRow] = {}
        self.served: dict[str, float] = {}
        """Tokens of prefill chunks by group, divided by its weight."""

    def __bool__(self) -> bool:
        """Return whether there is room for one more row."""
        return self.remaining_tokens > 0 and self.remaining_rows > 0

    def add(self, row: ScheduledRow) -> None:
        """Add a row, for which pages are reserved."""
        sequence, tokens, rows = row.sequence, row.tokens, self.rows
        assert sequence not in rows, "a sequence has one row in a step"
        rows[sequence] = row
        self.remaining_tokens -= tokens
        self.remaining_rows -= 1
        self._attention += tokens * row.start + tokens * tokens // 2 if tokens > 1 else row.start
        if tokens > 1 and tokens - len(row.drafts) > 1:
            served = tokens / sequence.weight
            self.served[sequence.group] = self.served.get(sequence.group, 0.0) + served

    @property
    def load(self) -> StepLoad:
        return StepLoad(len(self.rows), self._tokens - self.remaining_tokens, self._attention)

    def plan(self, discardable_s: float = 0.0) -> StepPlan:
        """Return the rows added so far as a plan."""
        return StepPlan(list(self.rows.values()), self.load, discardable_s)


class Packer:
    def __init__(
        self,
        cache: SessionAwareCache,
        admission: Admission,
        fault_isolation: FaultIsolation,
        speculation: Speculation | None,
    ) -> None:
        """Without `speculation`, and while `fault_isolation` searches, no row has drafts."""
        self._cache = cache
        self._admission = admission
        self._fault_isolation = fault_isolation
        self.prefixes = PrefixesInFlight(cache.page_size, is_used=cache.shares_pages_in_flight)
        self._speculation = speculation

    def add_live_rows(self, step: StepRows, sequences: list[Sequence]) -> bool:
        """Add the rows of live turns. If they are more than the rows left, those are first that
        have waited longest for one, shared among groups. Some may be retracted meanwhile, for the
        pages of others; they get no row. Returns False if nothing more can be planned in this step:
        it is full, or the pages that a row needs are in flight. Decodes have a shortcut."""
        limit, rows = self._admission.group_rows_max, step.remaining_rows
        is_limited = limit < rows
        if len(sequences) > (limit if is_limited else rows):
            sequences = _rotate(sequences)
        reserve, number = self._cache.reserve, step.number
        has_drafts = self._speculation is not None
        for sequence in sequences:
            if step.remaining_tokens <= 0 or step.remaining_rows <= 0:
                return False
            if is_limited and sum(s.group == sequence.group for s in step.rows) >= limit:
                continue
            turn, lease = sequence.turn, sequence.lease
            assert turn is not None
            launched = lease.committed + lease.reserved
            owed = len(sequence.ids) + sequence.promised - launched
            if owed == 1 and turn.is_admitted and not has_drafts and reserve(lease, 1):
                turn.last_step = number
                can_draw = turn.launched_tokens < turn.max_output_tokens
                step.add(ScheduledRow(sequence, launched, 1, turn if can_draw else None))
            elif not self.add_row(step, sequence, min(owed, SHORT_TURN_TOKENS_MAX)):
                return False
        return True

    def add_row(self, step: StepRows, sequence: Sequence, count: int) -> bool:
        """Add a row of up to `count` tokens of a turn, unless the turn was retracted in this step
        or may not take the pages it needs from others, which are retracted meanwhile. Returns False
        if nothing more can be planned in this step, because pages are still in flight."""
        cache, lease = self._cache, sequence.lease
        assert sequence.turn is not None
        if not sequence.turn.is_admitted:
            return True
        count = min(count, step.remaining_tokens)
        if self._speculation is not None:
            count = cache.components.fit_row(lease, count)
            drafts = self._propose_drafts(self._speculation, step, sequence, count)
            if drafts and self.reserve_row(step, sequence, count, drafts):
                return True
        while not self.reserve_row(step, sequence, count):
            later = self._admission.later_holders(sequence)
            victim = next((s for s in later if not s.in_flight), None)
            if victim is not None:
                self._admission.retract(victim, step.number)
            elif later:
                return False
            elif sequence is not self._admission.oldest_admitted():
                return True
            elif cache.has_in_flight():
                return False
            else:
                self._release_last_page(sequence)
        return True

    def reserve_row(
        self, step: StepRows, sequence: Sequence, count: int, drafts: "array[int]" = NO_DRAFTS
    ) -> bool:
        """Add a row of up to `count` tokens and of `drafts`, if there are pages for it. Returns
        whether there are."""
        if self._cache.has_components:
            count = self._cache.components.fit_row(sequence.lease, count)
        if not self._cache.reserve(sequence.lease, count + len(drafts)):
            return False
        tokens, turn = count + len(drafts), sequence.turn
        start = sequence.lease.launched - tokens
        if turn is not None:
            turn.last_step = step.number
        if count > 1:
            self.prefixes.add(sequence)
        draws = start + count == sequence.promised_end and sequence.can_draw
        step.add(ScheduledRow(sequence, start, tokens, turn if draws else None, drafts))
        return True

    def _propose_drafts(
        self, speculation: Speculation, step: StepRows, sequence: Sequence, count: int
    ) -> "array[int]":
        """Return the drafts behind the next `count` tokens of a turn, if these are known and the
        last ones of its log. A token is left for each further row of the step."""
        is_last = sequence.launched + count >= len(sequence.ids)
        if sequence.promised or self._fault_isolation.groups or not is_last:
            return NO_DRAFTS
        room = step.remaining_tokens - count - (step.remaining_rows - 1)
        drafts = speculation.propose(sequence, room)
        tokens = self._cache.components.fit_row(sequence.lease, count + len(drafts))
        return drafts[: max(tokens - count, 0)]

    def _release_last_page(self, sequence: Sequence) -> None:
        """Release the last, partly used page of the only turn in a full pool. The page is shared
        and no free page is left to copy it to, so its tokens are recomputed."""
        size = self._cache.page_size
        assert sequence.committed % size, "the oldest turn cannot have the pages it needs"
        self._cache.rewind(sequence.lease, sequence.committed // size * size)


def _rotate(live: list[Sequence]) -> list[Sequence]:
    """Return `live` in an order such that the first n, for each n, are shared among groups in
    proportion to their weights. In a group, those are first that have waited longest for a row."""
    ordered = sorted(live, key=lambda s: s.turn.last_step if s.turn else 0)
    if len({sequence.group for sequence in ordered}) == 1:
        return ordered
    rows: Counter[str] = Counter()
    places: list[tuple[float, int, Sequence]] = []
    for sequence in ordered:
        rows[sequence.group] += 1
        places.append((rows[sequence.group] / sequence.weight, len(places), sequence))
    return [sequence for _, _, sequence in sorted(places)]

"""Admission: which turns run, which wait, and which lose their pages to others. Pure: it decides,
and the scheduler admits and retracts.

A turn is admitted if its prompt fits into the pages that are available, and if the expected peak of
all turns (growth.py) is not above a multiple of the pool. That multiple is above 1, because a wrong
estimate that is too high leaves pages unused, and one that is too low only retracts a turn.

Turns that are admitted together reach their peak together, and then lose pages to each other. So,
after a retraction, admissions are paced: each turn takes a share of the pool for its expected life,
and the next one is admitted when that share of time has passed. Turns then end one by one.

Groups that have turns are entitled to rows and pages in proportion to their weights. What a group
does not use, the others may. It claims its share back: turns of groups that have more pages, per
weight, are retracted until its turn has room. Pages that retracted turns still have count too.
"""

from collections import Counter
from collections.abc import Collection

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.schedule.growth import Growth, OutputEstimate, compute_peak_tokens
from continuo.engine.core.sequence import Sequence

OVERCOMMITMENT = 1.7
"""Maximum expected peak of the turns, as a multiple of the pool."""
PACED_OVERCOMMITMENT = 1.2
"""The same while admissions are paced."""
RESUMPTION_OVERCOMMITMENT = 1.0
"""The same for a turn that was retracted, which would lose its KV again."""
PACED_STEPS = 1_000
"""Steps after a retraction in which admissions are paced."""
PACE = 0.55
"""Steps until the next admission, as a multiple of those in which a pool of turns like the admitted
one would end one turn, if no turn was retracted."""
WATERMARK = 0.01
"""Share of the pool that an admission leaves free, for the turns that run."""
TURNS_PER_ROW_MAX = 2
"""Maximum admitted turns, as a multiple of the rows of a step. Those beyond the rows rotate. Where
groups share, a group has its share of these at most."""


class Admission:
    """The turns of an engine: the admitted ones, which are computed, and the others, which wait.
    Changed by the scheduler alone, through `add` to `remove`; `decide` changes nothing."""

    def __init__(self, cache: SessionAwareCache, max_rows: int, max_group_share: float) -> None:
        """`max_group_share`: maximum share of rows and pages for one group, from 0 to 1."""
        self._cache = cache
        self._pool_tokens = cache.pool.total * cache.page_size
        self._turns_max = TURNS_PER_ROW_MAX * max_rows
        self.group_rows_max = max(int(max_rows * max_group_share), 1)
        """Maximum live rows of a group in a step."""
        self._max_group_share = max_group_share
        self.outputs = OutputEstimate()
        self.turns: dict[Sequence, None] = {}
        """Sequences with a turn, oldest turn first."""
        self.admitted: dict[Sequence, None] = {}
        self.retracted: dict[Sequence, None] = {}
        """Sequences with a turn that was retracted and not admitted again."""
        self.unqueued: list[Sequence] = []
        """Turns retracted since the last step was planned. They are in no queue, so that no list of
        turns changes while it is read."""
        self.retractions = 0
        self._arrivals = 0
        """Number of turns added."""
        self._groups: dict[str, int] = {}
        """Number of admitted turns of each group that has any."""
        self._paced_until = 0
        """Step at which admissions are no longer paced."""
        self._next_step = 0.0
        """Step at which the next turn may be admitted, while admissions are paced."""

    def add(self, sequence: Sequence) -> None:
        assert sequence.turn is not None
        self._arrivals += 1
        sequence.turn.arrival = self._arrivals
        self.turns[sequence] = None

    def admit(self, sequence: Sequence, step: int) -> None:
        assert sequence.turn is not None
        sequence.turn.is_admitted = True
        self.admitted[sequence] = None
        self._groups[sequence.group] = self._groups.get(sequence.group, 0) + 1
        if sequence in self.retracted:
            del self.retracted[sequence]
        elif step < self._paced_until:
            remaining, held = self._growth(sequence)
            share = (held + remaining / 2) / self._pool_tokens
            self._next_step = max(self._next_step, step) + PACE * share * remaining

    def retract(self, sequence: Sequence, step: int) -> None:
        """Take its admission from a turn, and make its pages evictable. Nothing of it may be in
        flight."""
        self.retractions += 1
        self._paced_until = step + PACED_STEPS
        self.revoke(sequence)
        self._cache.mark_idle(sequence.lease)

    def revoke(self, sequence: Sequence) -> None:
        """Take its admission from a turn whose KV is lost. It is due at once."""
        assert sequence.turn is not None
        sequence.turn.is_admitted = False
        sequence.turn.due_step = sequence.turn.first_step
        self._leave(sequence)
        self.retracted[sequence] = None
        self.unqueued.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence whose turn has ended, if it has had one."""
        if sequence in self.turns:
            del self.turns[sequence]
            self._leave(sequence)
            self.retracted.pop(sequence, None)

    def _leave(self, sequence: Sequence) -> None:
        if sequence in self.admitted:
            del self.admitted[sequence]
            turns = self._groups.pop(sequence.group)
            if turns > 1:
                self._groups[sequence.group] = turns - 1

    @property
    def waiting_turns(self) -> int:
        return len(self.turns) - len(self.admitted)

    def decide(self, sequence: Sequence, step: int) -> list[Sequence] | None:
        """Return the turns to retract before a waiting turn is admitted, mostly none; None: it is
        refused. The oldest turn is always admitted, and so is any if no turn runs."""
        if not self.admitted or next(iter(self.turns)) is sequence:
            return []
        if len(self._groups) > (sequence.group in self._groups) or self._max_group_share < 1:
            return self._decide_among_groups(sequence, step)
        has_rows = len(self.admitted) < self._turns_max
        return [] if has_rows and self._has_room(sequence, self.retracted, step) else None

    def oldest_admitted(self) -> Sequence:
        return next(sequence for sequence in self.turns if sequence in self.admitted)

    def later_holders(self, sequence: Sequence, new_pages: int = 1) -> list[Sequence]:
        """List the admitted turns that have pages and come after `sequence`, which needs
        `new_pages` more, last first: it may take their pages. In a group, a higher priority number
        comes after a lower one, then a younger turn after an older one. The turns of a group with
        more pages come after those of other groups. The oldest turn comes before all."""
        oldest, pages = self.oldest_admitted(), self._group_pages()
        found = [
            other
            for other in self.admitted
            if other.lease.pages
            and other is not oldest
            and (
                sequence is oldest
                or (
                    _rank(other) > _rank(sequence)
                    if other.group == sequence.group
                    else _is_richer(pages, other, sequence, new_pages)
                )
            )
        ]
        return sorted(found, key=_rank, reverse=True)

    def _decide_among_groups(self, sequence: Sequence, step: int) -> list[Sequence] | None:
        """Decide on a turn within what its group is entitled to."""
        pages, total = self._group_pages(), self._cache.pool.total
        needed = self._cache.usage.count_new_pages(sequence.lease, len(sequence.ids) + 1)
        held = pages[sequence.group] + needed
        weights = {s.group: s.weight for s in (*self.admitted, *self.retracted)}
        weights[sequence.group] = sequence.weight
        share, turns = sequence.weight / sum(weights.values()), self._groups.get(sequence.group, 0)
        if len(self.admitted) >= self._turns_max and turns >= self._turns_max * share:
            return None
        if turns and held > self._max_group_share * total:
            return None
        poorer = [s for s in self.retracted if not _is_richer(pages, s, sequence, 0)]
        if self._has_room(sequence, poorer, step):
            return []
        return self._claim(sequence, needed) if held <= share * total else None

    def _claim(self, sequence: Sequence, needed: int) -> list[Sequence] | None:
        """Return turns of groups with more pages without which the prompt of a turn, of `needed`
        pages, has room; None if there are not enough."""
        later = [s for s in self.later_holders(sequence, needed) if s.group != sequence.group]
        for count in range(len(later) + 1):
            if self._has_room_now(sequence, (), later[:count]):
                return later[:count]
        return None

    def _has_room(self, sequence: Sequence, retracted: Collection[Sequence], step: int) -> bool:
        """Return whether a turn has room, now and until all turns have ended. The pages that
        `retracted` turns still have are not available to it."""
        if not self._has_room_now(sequence, retracted):
            return False
        cache, pool = self._cache, self._pool_tokens
        exclusive = sum(cache.usage.exclusive_pages(s.lease) for s in self.admitted)
        shared = cache.pool.total - cache.usage.available_pages() - exclusive
        growths = [self._growth(s) for s in (*self.admitted, sequence)]
        peak = shared * cache.page_size + compute_peak_tokens(growths)
        if sequence in retracted:
            return peak <= RESUMPTION_OVERCOMMITMENT * pool
        if step >= self._paced_until:
            return peak <= OVERCOMMITMENT * pool
        have_all_room = peak + (self.waiting_turns - 1) * sum(growths[-1]) <= pool
        return have_all_room or (peak <= PACED_OVERCOMMITMENT * pool and step >= self._next_step)

    def _has_room_now(
        self,
        sequence: Sequence,
        retracted: Collection[Sequence],
        victims: Collection[Sequence] = (),
    ) -> bool:
        """Return whether the log of a turn, and one id more, fits into the pages that are
        available, beside the logs of the admitted turns without `victims`, whose pages are
        available too."""
        usage = self._cache.usage
        turns = [s for s in (*self.admitted, sequence) if s not in victims]
        freed = [s.lease for s in victims]
        needed = int(self._cache.pool.total * WATERMARK)
        needed += sum(usage.exclusive_pages(s.lease) for s in {*retracted, sequence})
        needed += sum(usage.count_new_pages(s.lease, len(s.ids) + 1) for s in turns)
        if needed > usage.available_pages(freed):
            return False
        return usage.have_components_room(len(sequence.ids) + 1, freed)

    def _group_pages(self) -> Counter[str]:
        """Count the pages of each group that no other lease references."""
        pages: Counter[str] = Counter()
        for sequence in (*self.admitted, *self.retracted):
            pages[sequence.group] += self._cache.usage.exclusive_pages(sequence.lease)
        return pages

    def _growth(self, sequence: Sequence) -> Growth:
        turn, lease = sequence.turn, sequence.lease
        assert turn is not None
        shared_pages = len(lease.pages) - self._cache.usage.exclusive_pages(lease)
        return Growth(
            self.outputs.remaining_tokens(turn.output_tokens, turn.max_output_tokens),
            len(sequence.ids) - shared_pages * self._cache.page_size,
        )


def _rank(sequence: Sequence) -> tuple[int, int]:
    assert sequence.turn is not None
    return sequence.turn.sampling.priority, sequence.turn.arrival


def _is_richer(pages: Counter[str], other: Sequence, sequence: Sequence, new_pages: int) -> bool:
    """Return whether the group of `other` has more pages, per weight, than that of `sequence` would
    have with `new_pages` more. `pages`: by group."""
    have = (pages[sequence.group] + new_pages) / sequence.weight
    return pages[other.group] / other.weight > have

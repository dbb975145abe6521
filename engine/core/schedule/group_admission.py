"""GroupAdmission: admission of turns, and retraction, where groups share rows and pages. Plans no
rows; retracts turns by the scheduler.

A turn is admitted within what its group is entitled to (group_shares.py). If others use that, its
group claims it: turns of groups that have more are retracted until the prompt of the turn has room.
"""

from collections.abc import Callable, Collection

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.schedule.admission import Admission
from continuo.engine.core.schedule.group_shares import GroupShares
from continuo.engine.core.sequence import Sequence


class GroupAdmission:
    def __init__(
        self,
        cache: SessionAwareCache,
        admission: Admission,
        admitted: Collection[Sequence],
        retracted: Collection[Sequence],
        retract: Callable[[Sequence], None],
        *,
        turns_max: int,
        max_group_share: float,
    ) -> None:
        """Args:
        cache: counts the pages that turns have and need; shared with the scheduler.
        admission: decides whether a turn has room beside those already admitted.
        admitted: the admitted turns: the scheduler's own, which changes them, also by `retract`.
        retracted: the retracted turns, in the same way.
        retract: takes its pages from an admitted turn, which is then in `retracted`.
        turns_max: number of admitted turns from which on a group has its share of them at most.
        max_group_share: maximum share of the pages for one group, from 0 to 1.
        """
        self._cache = cache
        self._admission = admission
        self._admitted = admitted
        self._retracted = retracted
        self._retract = retract
        self._turns_max = turns_max
        self._max_group_share = max_group_share
        self.claimant: Sequence | None = None
        """A turn that is to take pages from turns of other groups as soon as these are not in
        flight."""

    def has_room(self, sequence: Sequence, waiting: int, step: int) -> bool:
        """Return whether a turn can be admitted within what its group is entitled to. `waiting` and
        `step`: as in `Admission.has_room`."""
        shares = self._shares()
        share = shares.share(sequence)
        poorer = [s for s in self._retracted if not shares.is_richer(s, sequence, 0)]
        return self._has_turns_left(sequence, shares, share) and (
            self._admission.has_room(sequence, self._admitted, poorer, waiting=waiting, step=step)
            or self._claim_share(sequence, share)
        )

    def oldest_admitted(self) -> Sequence:
        return min(self._admitted, key=arrival)

    def later_holders(self, sequence: Sequence) -> list[Sequence]:
        """List the admitted turns that have pages and come after `sequence`, last first. In a
        group, a higher priority number comes after a lower one, then a younger turn after an older
        one. The turns of a group with more pages come after those of other groups. The oldest turn
        comes before all."""
        oldest = self.oldest_admitted()
        shares = self._shares()
        found = [
            other
            for other in self._admitted
            if other.lease.pages
            and other is not oldest
            and (
                sequence is oldest
                or (
                    _rank(other) > _rank(sequence)
                    if other.group == sequence.group
                    else shares.is_richer(other, sequence, 1)
                )
            )
        ]
        return sorted(found, key=_rank, reverse=True)

    def _shares(self) -> GroupShares:
        return GroupShares(self._cache, self._admitted, self._retracted)

    def _has_turns_left(self, sequence: Sequence, shares: GroupShares, share: float) -> bool:
        """Return whether the number of turns allows one more of its group, and the pages of the
        group its prompt."""
        turns = shares.turns(sequence)
        if len(self._admitted) >= self._turns_max and turns >= self._turns_max * share:
            return False
        pages = shares.pages(sequence) + self._prompt_pages(sequence)
        return turns == 0 or pages <= self._max_group_share * self._cache.pool.total

    def _prompt_pages(self, sequence: Sequence) -> int:
        return self._cache.usage.count_new_pages(sequence.lease, len(sequence.ids) + 1)

    def _claim_share(self, sequence: Sequence, share: float) -> bool:
        """Retract turns of groups that have more pages than that of `sequence`, whose share of the
        pool is `share`, until its prompt has room. Returns False if it has no claim, or if the
        turns to retract are in flight: then the next step is planned when they are not."""
        needed = self._prompt_pages(sequence)
        while True:
            shares = self._shares()
            if shares.pages(sequence) + needed > share * self._cache.pool.total:
                return False
            if self._admission.has_room_now(sequence, self._admitted, []):
                return True
            oldest = self.oldest_admitted()
            richer = [
                s
                for s in self._admitted
                if s is not oldest
                and s.group != sequence.group
                and shares.is_richer(s, sequence, needed)
            ]
            victim = max((s for s in richer if not s.in_flight), key=_rank, default=None)
            if victim is None:
                self.claimant = sequence if richer else None
                return False
            self._retract(victim)


def arrival(sequence: Sequence) -> int:
    assert sequence.turn is not None
    return sequence.turn.arrival


def _rank(sequence: Sequence) -> tuple[int, int]:
    assert sequence.turn is not None
    return sequence.turn.sampling.priority, sequence.turn.arrival

"""Admission: whether there is room for one more turn, now and until all turns have ended. Pure.

A turn is admitted if its prompt fits into the pages that are available, and if the expected peak of
all turns (growth.py) is not above a multiple of the pool. That multiple is above 1, because a wrong
estimate that is too high leaves pages unused, and one that is too low only retracts a turn.

Turns that are admitted together reach their peak together, and then lose pages to each other. So,
after a retraction, admissions are paced: each turn takes a share of the pool for its expected life,
and the next one is admitted when that share of time has passed. Turns then end one after the other,
and the pages of one that ends serve the growth of the others.
"""

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


class Admission:
    def __init__(self, cache: SessionAwareCache) -> None:
        self._cache = cache
        self._outputs = OutputEstimate()
        self._paced_until = 0
        """Step at which admissions are no longer paced."""
        self._next_step = 0.0
        """Step at which the next turn may be admitted, while admissions are paced."""

    def observe_output(self, tokens: int) -> None:
        """Record the length of the output of a turn that has ended."""
        self._outputs.observe(tokens)

    def record_retraction(self, step: int) -> None:
        self._paced_until = step + PACED_STEPS

    def record_admission(self, sequence: Sequence, step: int) -> None:
        """Record the admission of a turn that was not retracted."""
        if step < self._paced_until:
            remaining, held = self._growth(sequence)
            share = (held + remaining / 2) / self._pool_tokens
            self._next_step = max(self._next_step, step) + PACE * share * remaining

    def has_room(
        self,
        sequence: Sequence,
        admitted: Collection[Sequence],
        retracted: Collection[Sequence],
        *,
        waiting: int,
        step: int,
    ) -> bool:
        """Return whether a turn can be admitted beside those `admitted`. The pages that `retracted`
        turns still have are not available to it. `waiting`: number of other turns that are not
        admitted."""
        return self.has_room_now(sequence, admitted, retracted) and self._has_room_later(
            [*admitted, sequence], waiting, step, is_retracted=sequence in retracted
        )

    def has_room_now(
        self, sequence: Sequence, admitted: Collection[Sequence], retracted: Collection[Sequence]
    ) -> bool:
        """Return whether the log of a turn, and one id more, fits into the pages that are
        available, beside the logs of the turns `admitted`."""
        usage = self._cache.usage
        needed = int(self._cache.pool.total * WATERMARK)
        needed += sum(usage.exclusive_pages(s.lease) for s in {*retracted, sequence})
        needed += sum(usage.count_new_pages(s.lease, len(s.ids) + 1) for s in (*admitted, sequence))
        has_components = usage.have_components_room(len(sequence.ids) + 1)
        return needed <= usage.available_pages() and has_components

    def _has_room_later(
        self, turns: list[Sequence], waiting: int, step: int, *, is_retracted: bool
    ) -> bool:
        """Return whether the expected peak of `turns` is within its bound, and whether it is time
        for the admission of the last of them."""
        cache, pool = self._cache, self._pool_tokens
        exclusive = sum(cache.usage.exclusive_pages(s.lease) for s in turns[:-1])
        shared = cache.pool.total - cache.usage.available_pages() - exclusive
        growths = [self._growth(s) for s in turns]
        peak = shared * cache.page_size + compute_peak_tokens(growths)
        if is_retracted:
            return peak <= RESUMPTION_OVERCOMMITMENT * pool
        if step >= self._paced_until:
            return peak <= OVERCOMMITMENT * pool
        have_all_room = peak + waiting * sum(growths[-1]) <= pool
        return have_all_room or (peak <= PACED_OVERCOMMITMENT * pool and step >= self._next_step)

    @property
    def _pool_tokens(self) -> int:
        return self._cache.pool.total * self._cache.page_size

    def _growth(self, sequence: Sequence) -> Growth:
        turn, lease = sequence.turn, sequence.lease
        assert turn is not None
        shared_pages = len(lease.pages) - self._cache.usage.exclusive_pages(lease)
        return Growth(
            self._outputs.remaining_tokens(turn.output_tokens, turn.max_output_tokens),
            len(sequence.ids) - shared_pages * self._cache.page_size,
        )

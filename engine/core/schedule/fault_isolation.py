"""Isolation: find the row that makes a step fail, by bisection. Pure.

    step of a b c d e f g h fails   groups [a b c d] [e f g h]
    step of a b c d succeeds               [e f g h]
    step of e f g h fails                  [e f] [g h]
    step of e f fails                      [e] [f] [g h]
    step of e fails                        e is the culprit

A step takes its rows from one group of suspects, or from all other sequences; the two kinds
alternate, so that a search does not stop the others. A suspect is cleared when its KV reaches as
far as the failed step would have brought it, or when the suspected ids are cut from its log. A row
that fails in a step of its own, after it was suspected, is the culprit: a failure that does not
come again has none. One bad row among n costs about 2 log2(n) steps.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from continuo.engine.core.sequence import Sequence

Allowed = Callable[[Sequence], bool]
"""Whether a sequence may have a row in the next step."""


class Share(NamedTuple):
    """A way to choose the rows of a step."""

    allowed: Allowed | None
    """Sequences that may have a row; None means all."""
    apart: bool
    """Whether the rows of the step are suspects."""


ALL = Share(None, apart=False)


class Doubt(NamedTuple):
    """Why a sequence is suspected: the first `since` ids of its log, until its KV holds `until`."""

    since: int
    until: int

    def clears(self, sequence: Sequence) -> bool:
        cut = len(sequence.ids) < self.since
        return cut or sequence.committed >= self.until or sequence.closing is not None


class Isolation:
    def __init__(self) -> None:
        self._groups: list[dict[Sequence, Doubt]] = []
        """A sequence is in one group at most."""
        self._was_apart = False
        """The last step took its rows from a group."""

    def __bool__(self) -> bool:
        """Whether there are suspects."""
        return bool(self._groups)

    def failed(self, reaches: dict[Sequence, int]) -> Sequence | None:
        """Record that a step has raised an exception; `reaches` is how far it would have brought
        the KV of each of its rows. Returns the culprit, if this step has found it."""
        suspects = self._suspects()
        only = next(iter(reaches))
        if len(reaches) == 1 and only in suspects:
            return only
        for group in self._groups:
            for sequence in reaches:
                group.pop(sequence, None)
        doubts = [
            (sequence, Doubt(reach, max(reach, suspects[sequence].until)))
            if sequence in suspects
            else (sequence, Doubt(reach, reach))
            for sequence, reach in reaches.items()
        ]
        half = (len(doubts) + 1) // 2
        self._groups = [dict(doubts[:half]), dict(doubts[half:]), *self._groups]
        return None

    def suspect(self, sequence: Sequence, more: int) -> None:
        """Run the sequence in steps of its own until it has KV of its present ids and of `more`."""
        for group in self._groups:
            group.pop(sequence, None)
        length = len(sequence.ids)
        self._groups.append({sequence: Doubt(length, length + more)})

    def searching(self, owes: Allowed) -> bool:
        """Whether a suspect owes tokens."""
        return bool(self._owing(owes))

    def shares(self, owes: Allowed) -> list[Share]:
        """Ways to choose the rows of the next step, the preferred one first. The others follow
        because a group may find no pages while older turns hold them."""
        groups = self._owing(owes)
        if not groups:
            return [ALL]
        suspects = self._suspects()
        apart = [Share(group.__contains__, apart=True) for group in groups]
        together = Share(partial(_not_in, suspects), apart=False)
        return [together, *apart] if self._was_apart else [*apart, together]

    def took(self, share: Share) -> None:
        """Record how the rows of the step that was planned were chosen."""
        self._was_apart = share.apart

    def _owing(self, owes: Allowed) -> list[dict[Sequence, Doubt]]:
        """Groups of which a sequence owes tokens, without those that are cleared."""
        for group in self._groups:
            for sequence in [s for s, doubt in group.items() if doubt.clears(s)]:
                del group[sequence]
        self._groups = [group for group in self._groups if group]
        return [group for group in self._groups if any(map(owes, group))]

    def _suspects(self) -> dict[Sequence, Doubt]:
        return {s: doubt for group in self._groups for s, doubt in group.items()}


def _not_in(suspects: dict[Sequence, Doubt], sequence: Sequence) -> bool:
    return sequence not in suspects

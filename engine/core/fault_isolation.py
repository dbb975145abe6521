"""FaultIsolation: finds the row that makes a step fail, by bisection. Pure.

    step of a b c d e f g h fails   groups [a b c d] [e f g h]
    step of a b c d succeeds               [e f g h]
    step of e f g h fails                  [e f] [g h]
    step of e f fails                      [e] [f] [g h]
    step of e fails                        e is the culprit

The sequences of a failed step become suspects. Then each step takes its rows either from one group
of suspects or from the other sequences; the two kinds alternate, so that a search does not stop the
other sequences. A suspect is cleared when the KV that the failed step would have written for it has
been computed, or when the suspected ids are cut from its log. A suspect that fails in a step
without other rows is the culprit; a failure that is not repeated has no culprit. Finding one bad
row among n takes about 2 log2(n) steps.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from continuo.engine.core.sequence import Sequence

SequenceFilter = Callable[[Sequence], bool]
"""Predicate of a sequence, for instance whether it may have a row in the next step."""


class RowSelection(NamedTuple):
    """The sequences that may have a row in the next step."""

    sequence_filter: SequenceFilter | None
    """Sequences that may have a row; None means all."""
    has_only_suspects: bool
    """Whether the sequences selected are one group of suspects. False: no suspect with work is
    selected."""


NO_SEARCH = (RowSelection(None, has_only_suspects=False),)


class Suspicion(NamedTuple):
    """Suspicion that computing the first `log_length` ids of a sequence makes steps fail. It is
    cleared when `cleared_at` tokens of the sequence have KV, when some of the suspected ids are cut
    from the log, or when the session is closed."""

    log_length: int
    cleared_at: int

    def is_cleared(self, sequence: Sequence) -> bool:
        cut = len(sequence.ids) < self.log_length
        return cut or sequence.committed >= self.cleared_at or sequence.closing_command is not None


class FaultIsolation:
    def __init__(self) -> None:
        self.groups: list[dict[Sequence, Suspicion]] = []
        """Disjoint groups of suspects."""
        self._was_suspects_only = False
        """Whether the last planned step took its rows from a group of suspects."""

    def record_failure(self, kv_ends: dict[Sequence, int]) -> Sequence | None:
        """Record that a step has raised an exception. `kv_ends` maps each sequence in the step to
        the position up to which its KV would have been written. Returns the culprit if this failure
        identifies it, else None."""
        suspects = self._suspects()
        only = next(iter(kv_ends))
        if len(kv_ends) == 1 and only in suspects:
            return only
        for group in self.groups:
            for sequence in kv_ends:
                group.pop(sequence, None)
        suspicions = [
            (sequence, Suspicion(reach, max(reach, suspects[sequence].cleared_at)))
            if sequence in suspects
            else (sequence, Suspicion(reach, reach))
            for sequence, reach in kv_ends.items()
        ]
        half = (len(suspicions) + 1) // 2
        self.groups = [dict(suspicions[:half]), dict(suspicions[half:]), *self.groups]
        return None

    def add_suspect(self, sequence: Sequence, extra_tokens: int) -> None:
        """Run a sequence in steps without other rows until its current ids and `extra_tokens` more
        have KV."""
        for group in self.groups:
            group.pop(sequence, None)
        length = len(sequence.ids)
        self.groups.append({sequence: Suspicion(length, length + extra_tokens)})

    def is_searching(self, has_work: SequenceFilter) -> bool:
        """Return whether any suspect has work, so that the search continues."""
        return bool(self._groups_with_work(has_work))

    def row_selections(self, has_work: SequenceFilter) -> tuple[RowSelection, ...]:
        """Return the selections to try for the next step, in order of preference; the first that
        yields a row is used. Each group of suspects with work is one selection; the sequences that
        are not suspects are another, which is preferred if the last step had rows of suspects. A
        group may yield no row while older turns hold the pages that it needs. Returns
        NO_SEARCH if no suspect has work."""
        groups = self._groups_with_work(has_work)
        if not groups:
            return NO_SEARCH
        suspects = self._suspects()
        suspects_only = [
            RowSelection(group.__contains__, has_only_suspects=True) for group in groups
        ]
        others_only = RowSelection(partial(_not_in, suspects), has_only_suspects=False)
        if self._was_suspects_only:
            return (others_only, *suspects_only)
        return (*suspects_only, others_only)

    def record_selection(self, selection: RowSelection) -> None:
        """Record the selection by which the rows of the planned step were chosen."""
        self._was_suspects_only = selection.has_only_suspects

    def _groups_with_work(self, has_work: SequenceFilter) -> list[dict[Sequence, Suspicion]]:
        """Remove cleared suspects and return the groups in which any suspect has work."""
        for group in self.groups:
            for sequence in [s for s, suspicion in group.items() if suspicion.is_cleared(s)]:
                del group[sequence]
        self.groups = [group for group in self.groups if group]
        return [group for group in self.groups if any(map(has_work, group))]

    def _suspects(self) -> dict[Sequence, Suspicion]:
        return {s: suspicion for group in self.groups for s, suspicion in group.items()}


def _not_in(suspects: dict[Sequence, Suspicion], sequence: Sequence) -> bool:
    return sequence not in suspects

"""Speculation on the null device, with drafts that are right up to a random place."""

import random
from array import array

from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation import Speculation
from continuo.engine.core.speculation.draft_gain import DraftGain
from tests.support.digest_runner import VOCABULARY, oracle

DRAFTS_MAX = 5


class EagerGain(DraftGain):
    """A gain that no measurement ends."""

    @property
    def is_drafting(self) -> bool:
        return True


class OracleDrafter:
    """Drafter that knows what the null device will draw, and errs half of the time."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def expects_match(self, sequence: Sequence) -> bool:
        return self._source.random() < 0.5

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        turn, source = sequence.turn, self._source
        assert turn is not None
        count = source.randint(0, count)
        drafts = oracle(
            sequence.ids,
            count,
            matcher=turn.matcher and turn.matcher.copy(),
            sampling=turn.sampling,
            seed=turn.seed,
            first=turn.launched_tokens,
        )
        if drafts and source.random() < 0.5:
            drafts[source.randrange(len(drafts))] = source.randrange(VOCABULARY)
        return array("i", drafts)


def oracle_speculation(source: random.Random, length: int = DRAFTS_MAX) -> Speculation:
    return Speculation(OracleDrafter(source), length, EagerGain)


class RecordedDrafter:
    """Drafter that knows the logs of sessions that were run before, and errs half of the time."""

    def __init__(self, source: random.Random, logs: list[list[int]], vocabulary: int) -> None:
        self._source = source
        self._logs = [array("i", log) for log in logs]
        self._vocabulary = vocabulary

    def expects_match(self, sequence: Sequence) -> bool:
        return self._source.random() < 0.5

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        length, source = len(sequence.ids), self._source
        known = (log for log in self._logs if log[:length] == sequence.ids)
        drafts = next((log[length : length + count] for log in known), array("i"))
        if drafts and source.random() < 0.5:
            drafts[source.randrange(len(drafts))] = source.randrange(self._vocabulary)
        return drafts


def recorded_speculation(
    source: random.Random, logs: list[list[int]], vocabulary: int
) -> Speculation:
    return Speculation(RecordedDrafter(source, logs, vocabulary), DRAFTS_MAX, EagerGain)

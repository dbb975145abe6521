"""Tests of turns that are retracted while a step is planned: each has at most one row in the step,
which begins where its KV ends, and the ids are those of one prefill.

The turns were found in crowded worlds (tests/worlds), and cut down by hand.
"""

from array import array
from typing import Any, NamedTuple

import pytest

from continuo.engine.batch import WindowGroup
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation import Speculation
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.drafting import EagerGain
from tests.support.engine_sessions import prompt_ids

STATE: dict[str, Any] = {"state_slots": 40}
WINDOW: dict[str, Any] = {"windows": (WindowGroup(8, 200),)}


class Waiting(NamedTuple):
    """A turn that begins when `step` steps were planned."""

    group: str
    prompt: int
    output: int
    step: int


class Case(NamedTuple):
    memory: dict[str, Any]
    drafts: int
    page_size: int
    pages: int
    turns: tuple[Waiting, ...]
    batched_tokens: int = 64
    is_retracted: bool = False
    """Whether a turn loses its pages. A claim in vain takes none."""


CASES = {
    # While short turns are listed, one of another group claims pages of a turn that is listed.
    "listed, state": Case(
        STATE,
        0,
        4,
        9,
        (Waiting("b", 8, 1, 1), Waiting("a", 24, 1, 0), Waiting("a", 5, 1, 1)),
    ),
    "listed, state and drafts": Case(
        STATE, 3, 16, 6, (Waiting("b", 33, 21, 0), Waiting("b", 1, 2, 6), Waiting("c", 32, 1, 5))
    ),
    "listed, window and drafts": Case(
        WINDOW, 3, 4, 12, (Waiting("a", 1, 2, 5), Waiting("a", 18, 9, 3), Waiting("b", 20, 1, 5))
    ),
    # The same with a turn that decodes.
    "decoding, full and drafts": Case(
        {}, 3, 16, 4, (Waiting("c", 24, 9, 3), Waiting("c", 1, 6, 4), Waiting("a", 16, 1, 5))
    ),
    "decoding, state and drafts": Case(
        STATE, 3, 16, 9, (Waiting("a", 16, 1, 1), Waiting("b", 112, 1, 0), Waiting("b", 1, 6, 0))
    ),
    # The turn for which the last step had no room claims pages of one that decodes.
    "claimed by an overdue turn": Case(
        {},
        3,
        16,
        10,
        (Waiting("a", 65, 1, 1), Waiting("b", 1, 6, 1), Waiting("b", 72, 9, 0)),
        batched_tokens=128,
    ),
    # A row takes pages of a turn that decodes, which is then admitted again, as a short turn.
    "for a row, state": Case(
        STATE,
        0,
        4,
        8,
        (
            Waiting("b", 17, 2, 1),
            Waiting("a", 20, 1, 1),
            Waiting("c", 1, 6, 3),
            Waiting("a", 8, 6, 0),
        ),
        is_retracted=True,
    ),
    "for a row, state and drafts": Case(
        STATE,
        3,
        16,
        11,
        (Waiting("b", 1, 14, 3), Waiting("c", 66, 1, 2), Waiting("a", 73, 13, 2)),
        is_retracted=True,
    ),
    "for a row, full and drafts": Case(
        {},
        3,
        16,
        4,
        (
            Waiting("a", 17, 1, 7),
            Waiting("a", 10, 9, 7),
            Waiting("a", 8, 9, 5),
            Waiting("b", 1, 10, 7),
        ),
        is_retracted=True,
    ),
    "for a row, window and drafts": Case(
        WINDOW,
        3,
        16,
        12,
        (
            Waiting("b", 66, 1, 7),
            Waiting("b", 37, 17, 7),
            Waiting("a", 58, 8, 8),
            Waiting("a", 15, 4, 7),
        ),
        is_retracted=True,
    ),
}


class RightDrafter:
    """Drafter that knows what the null device will draw."""

    def expects_match(self, sequence: Sequence) -> bool:
        del sequence
        return True

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        return array("i", oracle(sequence.ids, count))


@pytest.mark.parametrize("name", list(CASES))
def test_turn_retracted_while_a_step_is_planned_has_one_row(name: str) -> None:
    case = CASES[name]
    core = CoreHarness(
        pages=case.pages,
        page_size=case.page_size,
        batched_tokens=case.batched_tokens,
        speculation=Speculation(RightDrafter(), case.drafts, EagerGain) if case.drafts else None,
        **case.memory,
    )
    prompts = [prompt_ids(turn.prompt, n) for n, turn in enumerate(case.turns)]
    for step in range(1 + max(turn.step for turn in case.turns)):
        for n, turn in enumerate(case.turns):
            if turn.step == step:
                core.open(f"s{n}", group=turn.group)
                core.append(f"s{n}", list(prompts[n]))
                core.generate(f"s{n}", turn.output)
        core.step()
    core.run()
    assert (core.scheduler.admission.retractions > 0) == case.is_retracted
    for n, turn in enumerate(case.turns):
        assert core.turn_ids(f"s{n}") == oracle(prompts[n], turn.output)

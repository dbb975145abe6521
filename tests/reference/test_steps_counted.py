"""Tests of the cost of turns, counted in steps: short turns beside a long cold prompt, and turns
whose cost does not depend on their history. SGLang measures both with clocks.
"""

from array import array
from collections.abc import Sequence

import pytest

from continuo.engine.core.cache.radix_tree import RadixNode, RadixTree
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import prompt_ids

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
DEEP = 4_000


class CountedTree(RadixTree):
    walks = 0
    """How many lookups and insertions have walked the tree."""

    def match(
        self, scope: str, ids: "array[int]", limit: int, known: Sequence[RadixNode] = ()
    ) -> list[RadixNode]:
        self.walks += 1
        return super().match(scope, ids, limit, known)

    def insert(
        self, scope: str, parent: RadixNode | None, key: bytes, page: int
    ) -> tuple[RadixNode, bool]:
        self.walks += 1
        return super().insert(scope, parent, key, page)


def advance(core: CoreHarness, ahead: int) -> None:
    launched = core.launch()
    if launched is None or core.steps_in_flight > ahead:
        core.collect()


@AHEAD
@pytest.mark.parametrize("chunk", [64, 512])
def test_short_turns_do_not_wait_for_a_long_cold_prompt(ahead: int, chunk: int) -> None:
    """No head-of-line blocking: each of seven short turns (16 tokens in, 4 out) takes at most one
    step more than alone, and the prompt ends.
    """
    core = CoreHarness(pages=DEEP // 16 + 60, page_size=16, batched_tokens=chunk)
    core.open("deep")
    core.append("deep", prompt_ids(DEEP, seed=3))
    core.generate("deep", 1)
    advance(core, ahead)
    alone = 4 + ahead
    for n in range(7):
        name = f"short {n}"
        core.open(name)
        core.append(name, prompt_ids(16, seed=n + 10))
        core.generate(name, 4)
        steps = 0
        while not core.has_turn_ended(name):
            advance(core, ahead)
            steps += 1
        assert steps <= alone + 1
        assert core.turn_ids(name) == oracle(prompt_ids(16, seed=n + 10), 4)
        if chunk == 64:
            assert not core.has_turn_ended("deep"), "the short turns end first"
    core.run(ahead=ahead)
    assert core.turn_ids("deep") == oracle(prompt_ids(DEEP, seed=3), 1)


def test_long_prompts_are_prefilled_one_after_the_other() -> None:
    """Three prompts: their first ids come as early as they can, and the shorter one is not last."""
    core = CoreHarness(pages=400, page_size=16, batched_tokens=96)
    lengths = (960, 960, 480)
    for n, length in enumerate(lengths):
        core.open(f"deep {n}")
        core.append(f"deep {n}", prompt_ids(length, seed=n))
        core.generate(f"deep {n}", 2)
    first_id_steps: dict[int, int] = {}
    for step in range(1, 30):
        core.step()
        for n in range(3):
            if core.turn_ids(f"deep {n}"):
                first_id_steps.setdefault(n, step)
    assert first_id_steps == {2: 5, 0: 16, 1: 26}
    core.run()
    for n, length in enumerate(lengths):
        assert core.turn_ids(f"deep {n}") == oracle(prompt_ids(length, seed=n), 2)


@AHEAD
@pytest.mark.parametrize("page_size", [pytest.param(1, marks=pytest.mark.long), 16, 256])
def test_cost_of_a_turn_does_not_grow_with_the_history(page_size: int, ahead: int) -> None:
    """150 turns of 16 tokens in and 8 out: each but the first computes as many tokens, launches as
    many steps and creates as many tree nodes, and none walks the tree. SGLang allows a factor of
    1.15.
    """
    core = CoreHarness(pages=4_096 // page_size, page_size=page_size, batched_tokens=512)
    tree = core.cache.tree = CountedTree(page_size)
    core.open("s")
    log: list[int] = []
    costs: set[tuple[int, ...]] = set()
    for turn in range(150):
        before = core.runner.token_count, core.counters.steps, tree.size, tree.walks
        core.append("s", prompt_ids(16, seed=turn))
        log += prompt_ids(16, seed=turn)
        core.generate("s", 8, str(turn))
        core.run(ahead=ahead)
        log += core.turn_ids("s", str(turn))
        after = core.runner.token_count, core.counters.steps, tree.size, tree.walks
        if turn:
            costs.add(tuple(b - a for a, b in zip(before, after, strict=True)))
        else:
            assert tree.walks > 0
    assert costs == {(1 + 16 + 7, 8, 0, 0)}
    assert log[-8:] == oracle(log[:-8], 8)
    assert core.turn_end("s", "149").cached_tokens == 149 * 24 - 1

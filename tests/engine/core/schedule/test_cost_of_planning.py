"""Tests of the work of one step and of one eviction, counted in executed lines of Python."""

import sys
from array import array
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from continuo.bench.scheduling_scenarios import LoadedEngine, pages_for, prompt_ids
from continuo.engine.core.cache import SessionAwareCache


def count_lines(work: Callable[[], object]) -> int:
    """Return the number of lines that `work` executes, comprehensions and callees included."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return lines


def lines_per_step(turns: int, waiting: int, length: int = 1) -> float:
    """Return the lines of a step of `turns` decoding turns on 64 rows, while `waiting` others with
    prompts of `length` ids wait for admission."""
    loaded = LoadedEngine(pages=turns * pages_for(1_200))
    for n in range(turns):
        loaded.begin(f"s{n}", prompt_ids(200, seed=n), 1_000)
    while len(loaded.first_id_steps) < turns:
        loaded.step()
    for n in range(waiting):
        loaded.begin(f"w{n}", prompt_ids(length, seed=1_000 + n), 1_000)
    for _ in range(3):
        loaded.step()
    return sum(count_lines(loaded.step) for _ in range(24)) / 24


@pytest.mark.slow
def test_2000_turns_that_wait_for_pages_hardly_make_a_step_longer() -> None:
    assert lines_per_step(64, 2_000, length=1_600) <= 1.3 * lines_per_step(64, 0)


@pytest.mark.slow
@pytest.mark.parametrize("length", [40, 400])
def test_2000_turns_that_wait_for_rows_hardly_make_a_step_longer(length: int) -> None:
    assert lines_per_step(128, 2_000, length) <= 1.3 * lines_per_step(128, 0)


def test_evicting_a_page_does_not_depend_on_the_number_of_scopes() -> None:
    def lines_per_page(scopes: int) -> float:
        cache = SessionAwareCache(scopes, 4)
        for n in range(scopes):
            lease = cache.open(f"scope {n}")
            assert cache.reserve(lease, 4)
            cache.commit(lease, 4)
            cache.close(lease, array("i", [1, 2, 3, 4]), 4)
        greedy = cache.open("greedy")
        return count_lines(lambda: cache.reserve(greedy, 4 * scopes)) / scopes

    assert lines_per_page(8_000) <= 1.1 * lines_per_page(500)

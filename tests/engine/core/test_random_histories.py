"""Tests of the engine core under random histories: see RandomHistory."""

import os

import pytest

from tests.support.garbage import garbage_of_block
from tests.support.random_history import small_history
from tests.support.worlds import MEMORY_KINDS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(40))
def test_random_history_matches_the_plain_log(seed: int) -> None:
    small_history(seed).run()


@pytest.mark.parametrize("kind", MEMORY_KINDS)
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "12"))))
def test_random_history_with_other_components(kind: str, seed: int) -> None:
    small_history(seed, kind).run()


@pytest.mark.parametrize("kind", ["full", *MEMORY_KINDS])
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "12"))))
def test_random_history_with_drafts(kind: str, seed: int) -> None:
    history = small_history(seed, kind, has_drafts=True)
    history.run()
    counters = history.core.counters
    assert counters.draft_tokens >= counters.accepted_tokens
    assert counters.draft_rows == 0 or counters.draft_tokens > 0


@pytest.mark.parametrize("kind", ["full", *MEMORY_KINDS])
def test_random_history_leaves_nothing_to_the_garbage_collector(kind: str) -> None:
    """Ended turns and sessions, evicted pages and failed steps are freed by reference counts."""
    histories = [small_history(seed, kind, has_drafts=bool(seed % 2)) for seed in range(4)]
    with garbage_of_block() as garbage:
        for history in histories:
            history.run()
    assert not garbage

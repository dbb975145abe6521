"""Tests of `keep_prefix`: a session closed with it leaves its whole log in the radix tree, for its
cache scope; one closed without it leaves only what was published while it was open: the ids up to
its first turn."""

import pytest

from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import prompt_ids

KEEP = pytest.mark.parametrize("keep", [True, False])


@KEEP
@pytest.mark.parametrize("streaming", [True, False], ids=["session", "one-shot"])
def test_closed_session_leaves_its_log_or_first_prompt_cached(keep: bool, streaming: bool) -> None:
    core, log = CoreHarness(), list[int]()
    core.open("s", scope="ours")
    for turn, count in (("first", 17), ("second", 16)):
        core.append("s", prompt_ids(count))
        core.generate("s", 8, turn)
        core.run()
        log += prompt_ids(count) + core.turn_ids("s", turn)
    core.close("s", keep_prefix=keep)
    for scope, cached in (("ours", 48 if keep else 16), ("theirs", 0)):
        core.open(scope, streaming=streaming, scope=scope)
        core.append(scope, [*log, 1])
        core.generate(scope, 3)
        core.run()
        assert core.turn_end(scope).cached_tokens == cached
        assert core.turn_ids(scope) == oracle([*log, 1], 3)


@KEEP
def test_session_without_a_turn_leaves_its_full_pages(keep: bool) -> None:
    core = CoreHarness()
    core.open("s")
    core.append("s", prompt_ids(21))
    core.append("s", prompt_ids(9), span="provisional")
    core.run()
    core.close("s", keep_prefix=keep)
    assert (core.cache.tree.size, core.cache.usage.leased_pages) == (5, 0)

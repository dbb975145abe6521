"""Tests of `keep_prefix`: a session closed with it leaves its whole log in the radix tree, for its
cache scope; one closed without it leaves only the first prompt, published while it was open."""

import pytest

from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import prompt_ids

KEEP = pytest.mark.parametrize("keep", [True, False])


@KEEP
@pytest.mark.parametrize("streaming", [True, False], ids=["session", "one-shot"])
def test_closed_session_leaves_its_log_or_first_prompt_cached(keep: bool, streaming: bool) -> None:
    desk, log = CoreHarness(), list[int]()
    desk.open("s", scope="ours")
    for turn, count in (("first", 17), ("second", 16)):
        desk.append("s", prompt_ids(count))
        desk.generate("s", 8, turn)
        desk.run()
        log += prompt_ids(count) + desk.turn_ids("s", turn)
    desk.close("s", keep_prefix=keep)
    for scope, cached in (("ours", 48 if keep else 16), ("theirs", 0)):
        desk.open(scope, streaming=streaming, scope=scope)
        desk.append(scope, [*log, 1])
        desk.generate(scope, 3)
        desk.run()
        assert desk.turn_end(scope).cached_tokens == cached
        assert desk.turn_ids(scope) == oracle([*log, 1], 3)


@KEEP
def test_session_without_a_turn_leaves_its_pages_or_none(keep: bool) -> None:
    desk = CoreHarness()
    desk.open("s")
    desk.append("s", prompt_ids(21))
    desk.run()
    desk.close("s", keep_prefix=keep)
    assert (desk.cache.tree.size, desk.cache.leased_pages) == (5 if keep else 0, 0)

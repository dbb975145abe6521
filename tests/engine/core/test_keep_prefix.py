"""What a closed session leaves behind: with `keep_prefix` its whole log, to be found by any other
of its scope; without it nothing but the first prompt, which was shared while it lived."""

import pytest

from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import words

KEEP = pytest.mark.parametrize("keep", [True, False])


@KEEP
@pytest.mark.parametrize("streaming", [True, False], ids=["session", "one-shot"])
def test_what_comes_after_it_finds_the_log_or_the_first_prompt(keep: bool, streaming: bool) -> None:
    desk, log = Desk(), list[int]()
    desk.open("s", scope="ours")
    for turn, count in (("first", 17), ("second", 16)):
        desk.append("s", words(count))
        desk.generate("s", 8, turn)
        desk.run()
        log += words(count) + desk.said("s", turn)
    desk.close("s", keep_prefix=keep)
    for scope, found in (("ours", 48 if keep else 16), ("theirs", 0)):
        desk.open(scope, streaming=streaming, scope=scope)
        desk.append(scope, [*log, 1])
        desk.generate(scope, 3)
        desk.run()
        assert desk.ended(scope).cached_tokens == found
        assert desk.said(scope) == oracle([*log, 1], 3)


@KEEP
def test_a_session_that_never_spoke_leaves_its_pages_or_none(keep: bool) -> None:
    desk = Desk()
    desk.open("s")
    desk.append("s", words(21))
    desk.run()
    desk.close("s", keep_prefix=keep)
    assert (desk.cache.tree.size, desk.cache.leased_pages) == (5 if keep else 0, 0)

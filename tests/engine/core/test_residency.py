"""Where a turn's KV came from, as it is told: hot, host, recomputed, or none there ever was."""

from pathlib import Path

import pytest

from continuo.engine.wire.messages import AttachSession, GetSessionInfo, OpenSession, SessionInfo
from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import Talk, words
from tests.support.engines import digest_engine

LOG = words(30, seed=1)


def info(desk: Desk, session: str) -> SessionInfo:
    found = desk.do(GetSessionInfo(desk.n(), session)).info
    assert found is not None
    return found


def crowded(host_pages: int, *, streaming: bool = True) -> Desk:
    """A pool that holds one of its two sessions: `idle` had it first."""
    desk = Desk(pages=12, host_pages=host_pages)
    for n, name in enumerate(("idle", "other"), 1):
        desk.open(name, streaming=streaming)
        desk.append(name, words(30, seed=n))
        desk.generate(name, 3, "first")
        desk.run()
        assert desk.ended(name, "first").residency == "none"
    return desk


def ask(desk: Desk, session: str) -> str:
    desk.generate(session, 3, "again")
    desk.run()
    return desk.ended(session, "again").residency


def test_what_is_kept_is_hot() -> None:
    desk = crowded(0)
    kept = info(desk, "other")
    assert (kept.committed, kept.host_tokens, kept.lost_tokens) == (32, 0, 0)
    assert ask(desk, "other") == "hot"


def test_what_was_spilled_comes_back_from_the_host() -> None:
    desk = crowded(12)
    spilled = info(desk, "idle")
    assert spilled.host_tokens > 0
    assert spilled.committed + spilled.host_tokens == 32
    assert spilled.lost_tokens == 0
    assert ask(desk, "idle") == "host"
    assert info(desk, "idle").host_tokens == 0


def test_what_was_dropped_is_computed_again() -> None:
    desk = crowded(0)
    dropped = info(desk, "idle")
    assert dropped.lost_tokens > 0
    assert (dropped.committed + dropped.lost_tokens, dropped.host_tokens) == (32, 0)
    assert ask(desk, "idle") == "recomputed"
    assert info(desk, "idle").lost_tokens == 0


def test_so_it_was_if_it_was_computed_again_while_words_came() -> None:
    desk = crowded(0)
    desk.append("idle", [7, 7], span="provisional")
    desk.run()
    assert info(desk, "idle").lost_tokens == 0
    desk.append("idle", [7, 7], span="commit")
    assert ask(desk, "idle") == "recomputed"
    assert desk.ended("idle", "again").cached_tokens == 34


def test_a_branch_of_what_was_dropped_is_computed_again() -> None:
    desk = crowded(0)
    desk.fork("idle", "branch", 31)
    desk.append("branch", [5])
    assert ask(desk, "branch") == "recomputed"


def test_what_others_kept_meanwhile_is_not_computed_again() -> None:
    """A regular session shares its pages: who else has them keeps them for it."""
    desk = Desk(pages=16)
    desk.open("idle", streaming=False)
    desk.append("idle", LOG[:29])
    desk.generate("idle", 4, "first")
    desk.run()
    desk.fork("idle", "same", 32)
    desk.cache.retract(desk.sequence("idle").lease)
    assert info(desk, "idle").lost_tokens == 32
    assert ask(desk, "idle") == "hot"
    assert desk.ended("idle", "again").cached_tokens == 32


@pytest.mark.parametrize("known", [[], LOG])
def test_a_session_from_elsewhere_is_computed_again(known: list[int]) -> None:
    """But one of which nothing was said is not."""
    desk = Desk()
    opened = OpenSession(desk.n(), "s")
    desk.do(
        AttachSession(desk.n(), opened=opened, ids=known, provisional=[], generate=None, fence=0)
    )
    assert info(desk, "s").lost_tokens == len(known)
    desk.run()
    assert info(desk, "s").lost_tokens == 0
    desk.append("s", [1, 2])
    assert ask(desk, "s") == ("recomputed" if known else "none")
    assert desk.said("s", "again") == oracle([*known, 1, 2], 3)


async def test_after_an_engine_died_it_is_computed_again_and_then_hot(letters: Path) -> None:
    async with digest_engine(letters) as bench:
        talk = await Talk.open(bench.engine)
        await talk.say([1, 2, 3], 4)
        assert (await talk.say([4], 4)).residency == "hot"
        bench.kill()
        assert (await talk.say([5], 4)).residency == "recomputed"
        assert (await talk.say([6], 4)).residency == "hot"

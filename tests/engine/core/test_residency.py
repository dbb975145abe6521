"""Tests of the residency that a turn reports for its KV: hot, host, recomputed or none."""

from pathlib import Path

import pytest

from continuo.engine.wire.messages import AttachSession, GetSessionInfo, OpenSession, SessionInfo
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import CheckedSession, prompt_ids
from tests.support.engines import digest_engine

LOG = prompt_ids(30, seed=1)


def info(desk: CoreHarness, session: str) -> SessionInfo:
    found = desk.apply(GetSessionInfo(desk.next_number(), session)).info
    assert found is not None
    return found


def desk_with_small_pool(host_pages: int, *, streaming: bool = True) -> CoreHarness:
    """Return a desk whose pool holds one of its two sessions; `idle` ran first."""
    desk = CoreHarness(pages=12, host_pages=host_pages)
    for n, name in enumerate(("idle", "other"), 1):
        desk.open(name, streaming=streaming)
        desk.append(name, prompt_ids(30, seed=n))
        desk.generate(name, 3, "first")
        desk.run()
        assert desk.turn_end(name, "first").residency == "none"
    return desk


def residency_of_next_turn(desk: CoreHarness, session: str) -> str:
    desk.generate(session, 3, "next")
    desk.run()
    return desk.turn_end(session, "next").residency


def test_kept_kv_is_reported_hot() -> None:
    desk = desk_with_small_pool(0)
    kept = info(desk, "other")
    assert (kept.committed, kept.host_tokens, kept.lost_tokens) == (32, 0, 0)
    assert residency_of_next_turn(desk, "other") == "hot"


def test_spilled_kv_is_recalled_from_the_host() -> None:
    desk = desk_with_small_pool(12)
    spilled = info(desk, "idle")
    assert spilled.host_tokens > 0
    assert spilled.committed + spilled.host_tokens == 32
    assert spilled.lost_tokens == 0
    assert residency_of_next_turn(desk, "idle") == "host"
    assert info(desk, "idle").host_tokens == 0


def test_evicted_kv_is_reported_recomputed() -> None:
    desk = desk_with_small_pool(0)
    evicted = info(desk, "idle")
    assert evicted.lost_tokens > 0
    assert (evicted.committed + evicted.lost_tokens, evicted.host_tokens) == (32, 0)
    assert residency_of_next_turn(desk, "idle") == "recomputed"
    assert info(desk, "idle").lost_tokens == 0


def test_kv_recomputed_by_a_provisional_append_is_reported_recomputed() -> None:
    desk = desk_with_small_pool(0)
    desk.append("idle", [7, 7], span="provisional")
    desk.run()
    assert info(desk, "idle").lost_tokens == 0
    desk.append("idle", [7, 7], span="commit")
    assert residency_of_next_turn(desk, "idle") == "recomputed"
    assert desk.turn_end("idle", "next").cached_tokens == 34


def test_fork_of_evicted_kv_is_reported_recomputed() -> None:
    desk = desk_with_small_pool(0)
    desk.fork("idle", "branch", 31)
    desk.append("branch", [5])
    assert residency_of_next_turn(desk, "branch") == "recomputed"


def test_kv_kept_by_a_fork_is_not_recomputed() -> None:
    """A regular session shares its pages: its fork keeps them when its own lease is retracted."""
    desk = CoreHarness(pages=16)
    desk.open("idle", streaming=False)
    desk.append("idle", LOG[:29])
    desk.generate("idle", 4, "first")
    desk.run()
    desk.fork("idle", "same", 32)
    desk.cache.retract(desk.sequence("idle").lease)
    assert info(desk, "idle").lost_tokens == 32
    assert residency_of_next_turn(desk, "idle") == "hot"
    assert desk.turn_end("idle", "next").cached_tokens == 32


@pytest.mark.parametrize("known", [[], LOG])
def test_attached_session_is_reported_recomputed_unless_empty(known: list[int]) -> None:
    """A session attached with an empty log reports `none`."""
    desk = CoreHarness()
    opened = OpenSession(desk.next_number(), "s")
    desk.apply(
        AttachSession(
            desk.next_number(), opened=opened, ids=known, provisional=[], generate=None, fence=0
        )
    )
    assert info(desk, "s").lost_tokens == len(known)
    desk.run()
    assert info(desk, "s").lost_tokens == 0
    desk.append("s", [1, 2])
    assert residency_of_next_turn(desk, "s") == ("recomputed" if known else "none")
    assert desk.turn_ids("s", "next") == oracle([*known, 1, 2], 3)


async def test_turn_after_an_engine_crash_is_recomputed_and_the_next_is_hot(letters: Path) -> None:
    async with digest_engine(letters) as bench:
        talk = await CheckedSession.open(bench.engine)
        await talk.run_turn([1, 2, 3], 4)
        assert (await talk.run_turn([4], 4)).residency == "hot"
        bench.kill()
        assert (await talk.run_turn([5], 4)).residency == "recomputed"
        assert (await talk.run_turn([6], 4)).residency == "hot"

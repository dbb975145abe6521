"""Tests of the residency that a turn reports for its KV: hot, host, recomputed or none."""

from pathlib import Path

import pytest

from continuo.engine.wire.messages import AttachSession, GetSessionInfo, OpenSession, SessionInfo
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import CheckedSession, prompt_ids
from tests.support.engines import digest_engine

LOG = prompt_ids(30, seed=1)


def info(core: CoreHarness, session: str) -> SessionInfo:
    found = core.apply(GetSessionInfo(core.next_number(), session)).info
    assert found is not None
    return found


def desk_with_small_pool(host_pages: int, *, streaming: bool = True) -> CoreHarness:
    """Return a core whose pool holds one of its two sessions; `idle` ran first."""
    core = CoreHarness(pages=12, host_pages=host_pages)
    for n, name in enumerate(("idle", "other"), 1):
        core.open(name, streaming=streaming)
        core.append(name, prompt_ids(30, seed=n))
        core.generate(name, 3, "first")
        core.run()
        assert core.turn_end(name, "first").residency == "none"
    return core


def residency_of_next_turn(core: CoreHarness, session: str) -> str:
    core.generate(session, 3, "next")
    core.run()
    return core.turn_end(session, "next").residency


def test_kept_kv_is_reported_hot() -> None:
    core = desk_with_small_pool(0)
    kept = info(core, "other")
    assert (kept.committed, kept.host_tokens, kept.lost_tokens) == (32, 0, 0)
    assert residency_of_next_turn(core, "other") == "hot"


def test_spilled_kv_is_recalled_from_the_host() -> None:
    core = desk_with_small_pool(12)
    spilled = info(core, "idle")
    assert spilled.host_tokens > 0
    assert spilled.committed + spilled.host_tokens == 32
    assert spilled.lost_tokens == 0
    assert residency_of_next_turn(core, "idle") == "host"
    assert info(core, "idle").host_tokens == 0


def test_evicted_kv_is_reported_recomputed() -> None:
    core = desk_with_small_pool(0)
    evicted = info(core, "idle")
    assert evicted.lost_tokens > 0
    assert (evicted.committed + evicted.lost_tokens, evicted.host_tokens) == (32, 0)
    assert residency_of_next_turn(core, "idle") == "recomputed"
    assert info(core, "idle").lost_tokens == 0


def test_kv_recomputed_by_a_provisional_append_is_reported_recomputed() -> None:
    core = desk_with_small_pool(0)
    core.append("idle", [7, 7], span="provisional")
    core.run()
    assert info(core, "idle").lost_tokens == 0
    core.append("idle", [7, 7], span="commit")
    assert residency_of_next_turn(core, "idle") == "recomputed"
    assert core.turn_end("idle", "next").prefilled_after_commit == 1


def test_fork_of_evicted_kv_is_reported_recomputed() -> None:
    core = desk_with_small_pool(0)
    core.fork("idle", "branch", 31)
    core.append("branch", [5])
    assert residency_of_next_turn(core, "branch") == "recomputed"


def test_kv_kept_by_a_fork_is_not_recomputed() -> None:
    """A regular session shares its pages: its fork keeps them when its own lease is retracted."""
    core = CoreHarness(pages=16)
    core.open("idle", streaming=False)
    core.append("idle", LOG[:29])
    core.generate("idle", 4, "first")
    core.run()
    core.fork("idle", "same", 32)
    core.cache.rewind(core.sequence("idle").lease, 0)
    assert info(core, "idle").lost_tokens == 32
    assert residency_of_next_turn(core, "idle") == "hot"
    assert core.turn_end("idle", "next").cached_tokens == 32


def test_tokens_that_were_lost_before_the_first_id_are_not_reported_cached() -> None:
    """The turn begins with 16 of 56 tokens cached, and begins again with none."""
    core = CoreHarness()
    core.open("s")
    core.append("s", LOG[:16])
    core.run()
    core.append("s", prompt_ids(40, seed=2))
    core.generate("s", 3, "first")
    core.step()
    sequence = core.sequence("s")
    assert sequence.turn is not None
    assert (sequence.turn.output_tokens, sequence.turn.cached_tokens) == (0, 16)
    core.scheduler.retract(sequence)
    core.cache.reset()
    core.run()
    assert core.turn_end("s", "first").cached_tokens == 0


@pytest.mark.parametrize("known", [[], LOG])
def test_attached_session_is_reported_recomputed_unless_empty(known: list[int]) -> None:
    """A session attached with an empty log reports `none`."""
    core = CoreHarness()
    opened = OpenSession(core.next_number(), "s")
    core.apply(
        AttachSession(
            core.next_number(), opened=opened, ids=known, provisional=[], generate=None, fence=0
        )
    )
    assert info(core, "s").lost_tokens == len(known)
    core.run()
    assert info(core, "s").lost_tokens == 0
    core.append("s", [1, 2])
    assert residency_of_next_turn(core, "s") == ("recomputed" if known else "none")
    assert core.turn_ids("s", "next") == oracle([*known, 1, 2], 3)


async def test_turn_after_an_engine_crash_is_recomputed_and_the_next_is_hot(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        session = await CheckedSession.open(harness.engine)
        await session.run_turn([1, 2, 3], 4)
        assert (await session.run_turn([4], 4)).residency == "hot"
        harness.kill()
        assert (await session.run_turn([5], 4)).residency == "recomputed"
        assert (await session.run_turn([6], 4)).residency == "hot"

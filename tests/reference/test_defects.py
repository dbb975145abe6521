"""One test for each numbered defect of the reference's streaming sessions, on our door.

 1  a rejected request unlocks the session       test_1_…: what is refused leaves the turn alone
 2  retract commits an unfinished turn           test_2_…
 3  replace without a turn breaks the scheduler  test_3_…
 4  retract frees nothing                        test_4_…: alone, and a pool for two serves six
 5  idle sessions hold all rows                  test_5_…
 6  no cap, no admission, no eviction            test_6_…: a pool for three serves thirty. The cap
                                                 is the gateway's (`sessions_max` of
                                                 realtime/limits.py): realtime/test_connection.py::
                                                 test_too_many_sessions_are_sent_away
 7  timeout from submission, mid-turn            test_7_…: both kinds of session
 8  a turn lands where its history is not        test_8_…: a fresh engine is told the log first.
                                                 Of several engines behind one front, one lost:
                                                 engine/test_fronts.py::
                                                 test_sessions_of_a_lost_engine_go_on_elsewhere
 9  KV of another adapter or salt is reused      test_9_…: a session's scope is fixed when it is
                                                 opened and goes with its forks; no adapters here
10  logprob_start_len silently ignored           test_10_…: log-probabilities of outputs are the
                                                 same in all modes; those of prompts do not exist,
                                                 so nothing accepts the option
11  no host tier beside sessions                 test_11_…
12  the sanity check is skipped with sessions    test_12_…
"""

import asyncio
from pathlib import Path

import pytest

from continuo.engine.core.deferred_commands import QUEUED_TURNS_MAX
from continuo.engine.wire.messages import (
    AppendIds,
    CancelTurn,
    CommandRefused,
    Generate,
    RewindSession,
    Sampling,
    SessionExpired,
    TurnEnded,
)
from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import Talk, read, words
from tests.support.engines import digest_engine
from tests.support.retracting import RetractingScheduler

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
KINDS = pytest.mark.parametrize("streaming", [True, False])


def talking(
    desk: Desk, session: str, prompt: list[int], count: int, streaming: bool = True
) -> None:
    desk.open(session, streaming=streaming)
    desk.append(session, list(prompt))
    desk.generate(session, count)


@KINDS
@AHEAD
def test_1_a_rejected_request_does_not_unlock_the_session(streaming: bool, ahead: int) -> None:
    desk, prompt = Desk(), [1, 2, 3, 9]
    talking(desk, "s", prompt, 12, streaming=streaming)
    desk.step()
    queued = [
        desk.tell(Generate(desk.n(), "s", f"queued {n}", Sampling(max_tokens=1)))
        for n in range(QUEUED_TURNS_MAX)
    ]
    assert queued == [None] * QUEUED_TURNS_MAX
    for n in range(3):
        before = list(desk.sequence("s").ids), desk.sequence("s").turn
        refused = desk.refuse(Generate(desk.n(), "s", f"third {n}", Sampling()))
        assert (refused.code, refused.field) == ("busy", "turn")
        assert desk.refuse(AppendIds(desk.n(), "s", [1000])).code == "bad_request"
        if streaming:
            assert desk.refuse(AppendIds(desk.n(), "s", [7, 7], offset=1)).field == "offset"
        assert desk.tell(AppendIds(desk.n(), "s", [7, 7, 7])) is None, (
            "it waits; it rewrites nothing"
        )
        assert (list(desk.sequence("s").ids), desk.sequence("s").turn) == before
        desk.step()
    desk.run(ahead=ahead)
    said = oracle(prompt, 12)
    assert desk.said("s") == said
    log = prompt + said
    for n in range(QUEUED_TURNS_MAX):
        assert desk.said("s", f"queued {n}") == oracle(log, 1)
        log += desk.said("s", f"queued {n}")
    assert list(desk.sequence("s").ids) == log + [7] * 9
    assert len(desk.heard(TurnEnded)) == 1 + QUEUED_TURNS_MAX


@KINDS
@AHEAD
def test_2_retract_does_not_commit_an_unfinished_turn(streaming: bool, ahead: int) -> None:
    """While it is retracted nothing takes its place, and it ends once, as if nothing had been."""
    desk, prompt = Desk(), words(21)
    talking(desk, "s", prompt, 12, streaming=streaming)
    for _ in range(6):
        desk.step()
    sequence = desk.sequence("s")
    half = len(desk.said("s"))
    assert 0 < half < 12
    desk.scheduler.retract(sequence)
    assert not sequence.lease.pages
    assert list(sequence.ids) == prompt + desk.said("s"), "retract changes no history"
    assert desk.tell(AppendIds(desk.n(), "s", [7, 7])) is None
    assert desk.tell(Generate(desk.n(), "s", "next", Sampling(max_tokens=3))) is None
    assert not desk.heard(TurnEnded)
    desk.run(ahead=ahead)
    assert desk.said("s") == oracle(prompt, 12)
    end = desk.ended("s")
    assert (end.prompt_tokens, end.output_tokens, end.length) == (21, 12, 33)
    assert desk.said("s", "next") == oracle([*prompt, *desk.said("s"), 7, 7], 3)
    assert desk.ended("s", "next").prompt_tokens == 35


def test_3_replace_without_a_turn() -> None:
    desk = Desk()
    desk.open("s", streaming=False)
    for turn in "abc":
        desk.append("s", words(5))
        desk.generate("s", 3, turn)
        desk.run()
    assert desk.append("s", [8, 8], replace=True).length == 2
    desk.generate("s", 4, "d")
    desk.run()
    assert desk.said("s", "d") == oracle([8, 8], 4)
    for gone in "abc":
        assert desk.refuse(AppendIds(desk.n(), "s", [1], after=gone)).field == "after"
    assert desk.append("s", [1], after="d").length == 7


def test_4_retract_frees_every_page() -> None:
    desk = Desk(pages=32)
    for name in ("a", "b"):
        talking(desk, name, words(20, seed=ord(name)), 8)
    for _ in range(5):
        desk.step()
    held = len(desk.sequence("b").lease.pages)
    could, unheld = desk.cache.available_pages(), desk.cache.tree.unreferenced
    private = desk.sequence("b").lease.private_pages
    assert private > 0
    desk.scheduler.retract(desk.sequence("b"))
    assert desk.cache.available_pages() == could + private
    assert desk.cache.tree.unreferenced == unheld + held - private
    assert desk.sequence("b").committed == 0
    desk.run()
    assert desk.said("a") == oracle(words(20, seed=ord("a")), 8)
    assert desk.said("b") == oracle(words(20, seed=ord("b")), 8)


@KINDS
@AHEAD
@pytest.mark.parametrize("host_pages", [0, 6])
def test_4_a_pool_for_two_serves_six(streaming: bool, ahead: int, host_pages: int) -> None:
    """All at once, each with a turn that fills half of the pool."""
    desk, names = Desk(pages=16, host_pages=host_pages, batched_tokens=64), "abcdef"
    logs = {name: words(8, seed=ord(name)) for name in names}
    for name in names:
        desk.open(name, streaming=streaming)
        desk.append(name, list(logs[name]))
    for name in names:
        desk.generate(name, 24)
    desk.run(ahead=ahead)
    for name in names:
        assert desk.said(name) == oracle(logs[name], 24)
        assert desk.ended(name).reason == "length"
    assert desk.scheduler.retractions > 0
    assert not desk.scheduler.turns


@AHEAD
def test_5_idle_sessions_hold_no_rows(ahead: int) -> None:
    desk = Desk(pages=400, rows=4)
    logs = {f"s{n}": words(6, seed=n) for n in range(40)}
    for turn in ("first", "again"):
        for name, log in logs.items():
            if turn == "first":
                desk.open(name)
                desk.append(name, list(log))
            desk.generate(name, 3, turn)
        desk.run(ahead=ahead)
        for name, log in logs.items():
            assert desk.said(name, turn) == oracle(log, 3)
            log += desk.said(name, turn)


@KINDS
@AHEAD
@pytest.mark.parametrize("host_pages", [0, 20, 400])
def test_6_a_pool_for_three_serves_thirty(streaming: bool, ahead: int, host_pages: int) -> None:
    """Open, idle, each with a history that fills a third of the pool; any may speak next."""
    desk = Desk(pages=30, host_pages=host_pages, batched_tokens=64)
    logs = {f"s{n}": words(32, seed=n) for n in range(30)}
    for turn in range(2):
        for name, log in logs.items():
            if not turn:
                desk.open(name, streaming=streaming)
                desk.append(name, list(log))
            desk.generate(name, 3, str(turn))
            desk.run(ahead=ahead)
            assert desk.said(name, str(turn)) == oracle(log, 3)
            log += desk.said(name, str(turn))
            if turn:
                residency = "host" if host_pages == 400 else "recomputed"
                assert desk.ended(name, "1").residency == residency
    assert desk.cache.evicted_pages > 0


@KINDS
def test_7_a_timeout_counts_from_the_end_of_the_turn(streaming: bool) -> None:
    desk = Desk()
    desk.open("s", timeout_s=10.0, streaming=streaming)
    desk.append("s", words(5))
    desk.generate("s", 8)
    for _ in range(4):
        desk.step()
        desk.pass_time(60.0)
    assert desk.sequence("s").turn, "a turn six timeouts long goes on"
    desk.run()
    assert desk.said("s") == oracle(words(5), 8)
    desk.pass_time(9.9)
    assert desk.append("s", [1]).length == 14, "which counts anew"
    desk.pass_time(9.9)
    assert not desk.heard(SessionExpired)
    desk.pass_time(0.2)
    assert desk.heard(SessionExpired) == [SessionExpired("s")]
    assert desk.cache.leased_pages == 0
    assert desk.refuse(AppendIds(desk.n(), "s", [1])).code == "unknown_session"


def test_7_nor_while_something_waits_for_the_turn() -> None:
    desk = Desk()
    desk.open("s", timeout_s=10.0)
    desk.append("s", words(5))
    desk.generate("s", 4)
    assert desk.tell(Generate(desk.n(), "s", "next", Sampling(max_tokens=4))) is None
    desk.pass_time(100.0)
    desk.run()
    assert desk.ended("s", "next").reason == "length"
    assert not desk.heard(SessionExpired)


async def test_8_a_turn_finds_its_history_in_an_engine_that_came_back(letters: Path) -> None:
    async with digest_engine(letters) as bench:
        talks = [await Talk.open(bench.engine) for _ in range(3)]
        for turn in range(3):
            for n, talk in enumerate(talks):
                await talk.say(words(7, seed=turn + n), 4)
            bench.kill()
        assert bench.launches >= 3


@AHEAD
def test_9_no_kv_of_another_scope_is_reused(ahead: int) -> None:
    desk, prompt = Desk(pages=200), words(40)
    for scope in ("adapter a", "adapter b"):
        desk.open(scope, scope=scope)
        desk.append(scope, list(prompt))
        desk.generate(scope, 3)
        desk.run(ahead=ahead)
        assert desk.ended(scope).cached_tokens == 0
        before = desk.runner.tokens_run
        desk.fork(scope, f"fork of {scope}")
        desk.close(scope)
        for kin in (f"fork of {scope}", f"new in {scope}"):
            if kin.startswith("new"):
                desk.open(kin, scope=scope)
                desk.append(kin, list(prompt))
            desk.generate(kin, 3)
            desk.run(ahead=ahead)
        assert desk.runner.tokens_run - before < len(prompt), "within the scope it is"
    assert desk.runner.tokens_run >= 2 * len(prompt)
    scopes = {desk.sequence(f"fork of adapter {x}").lease.scope for x in "ab"}
    assert scopes == {"adapter a", "adapter b"}


async def test_10_log_probabilities_in_every_mode(letters: Path) -> None:
    async with digest_engine(letters) as bench:
        engine, sampling = bench.engine, Sampling(max_tokens=6, logprobs=3)
        told: list[list[object]] = []
        for streaming in (True, False):
            session = await engine.open(streaming=streaming, cache_scope=str(streaming))
            await engine.append(session, words(9))
            turn = await engine.generate(session, sampling)
            told.append([(p.ids, p.logprobs) async for p in turn])
        once = await engine.complete(words(9), sampling, cache_scope="none")
        told.append([(p.ids, p.logprobs) async for p in once])
        assert told[0] == told[1] == told[2]
        assert len(told[0]) == 6


@AHEAD
def test_11_the_host_tier_keeps_sessions(ahead: int) -> None:
    """Nothing of a session's history is computed again but its last id."""
    desk = Desk(pages=12, host_pages=40)
    logs = {name: words(30, seed=ord(name)) for name in "abc"}
    for name in logs:
        desk.open(name)
        desk.append(name, list(logs[name]))
        desk.run(ahead=ahead)
    assert desk.cache.host_tier.used_pages > 0
    for name, log in logs.items():
        before = desk.runner.tokens_run
        desk.generate(name, 2)
        desk.run(ahead=ahead)
        assert desk.said(name) == oracle(log, 2)
        assert desk.runner.tokens_run - before <= 2 + ahead
        assert desk.ended(name).residency == "host"
        assert desk.ended(name).cached_tokens == 29


def test_12_the_books_are_audited_with_sessions_held() -> None:
    """Planted faults are found while turns run and sessions idle."""
    for fault in range(5):
        desk = Desk()
        talking(desk, "idle", words(30), 3)
        desk.run()
        talking(desk, "busy", words(30, seed=1), 9)
        for _ in range(4):
            desk.step()
        cache, lease = desk.cache, desk.sequence("idle").lease
        match fault:
            case 0:
                cache.pool.release([lease.pages[-1]])
            case 1:
                cache.pool.allocate()
            case 2:
                lease.path[-1].ref_count += 1
            case 3:
                lease.committed -= 4
            case _:
                cache.host_tier.pool.release([0])
        with pytest.raises(AssertionError):
            cache.audit()


@KINDS
@AHEAD
def test_turns_are_the_same_however_often_they_are_retracted(streaming: bool, ahead: int) -> None:
    """Before every third step, and cancelled turns among them."""
    desk = Desk(scheduler=RetractingScheduler)
    names = "abcd"
    logs = {name: words(9, seed=ord(name)) for name in names}
    for name in names:
        desk.open(name, streaming=streaming)
        desk.append(name, list(logs[name]))
    for round in range(3):
        for name in names:
            desk.generate(name, 7, str(round))
        for _ in range(4):
            desk.step()
        desk.do(CancelTurn(desk.n(), "a", drop=bool(round % 2)))
        desk.run(ahead=ahead)
        for name in names:
            said = desk.said(name, str(round))
            assert said == oracle(logs[name], 7)[: len(said)]
            kept = [] if name == "a" and round % 2 else said
            logs[name] += kept
            assert list(desk.sequence(name).ids) == logs[name]
            assert name == "a" or len(said) == 7
    assert desk.scheduler.retractions > 9


async def test_a_reader_who_leaves_takes_nothing_with_him(letters: Path) -> None:
    """Nobody reads the turn; the session goes on when the next one is asked for."""
    async with digest_engine(letters) as bench:
        talk = await Talk.open(bench.engine)
        await talk.append(words(6))
        abandoned = await bench.engine.generate(talk.session, Sampling(max_tokens=5))
        turn = asyncio.create_task(
            bench.engine.generate(talk.session, Sampling(max_tokens=3), turn="next")
        )
        said = oracle(talk.log, 5)
        assert await read(await turn) == oracle(talk.log + said, 3)
        assert await read(abandoned) == said


def test_a_refused_rewind_or_append_is_no_turn() -> None:
    desk = Desk()
    talking(desk, "s", words(6), 3)
    desk.run()
    desk.refuse(RewindSession(desk.n(), "s", 10))
    desk.refuse(AppendIds(desk.n(), "s", [1], after="turn"))
    assert len(desk.heard(CommandRefused)) == 2
    assert desk.append("s", [4]).length == 10

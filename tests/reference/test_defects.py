"""Tests of this engine for each numbered defect of the streaming sessions of SGLang.

 1  a rejected request unlocks the session       test_1_…: a refused command leaves the turn alone
 2  retract commits an unfinished turn           test_2_…
 3  replace without a turn breaks the scheduler  test_3_…
 4  retract frees nothing                        test_4_…: alone, and a pool for two serves six
 5  idle sessions hold all rows                  test_5_…
 6  no cap, no admission, no eviction            test_6_…: a pool for three serves thirty. The cap
                                                 is the gateway's (`connected_sessions_max` of
                                                 realtime/limits.py), tested by
                                                 realtime/transport/test_connection.py::
                                                 test_connection_over_the_session_limit_is_refused
 7  timeout from submission, mid-turn            test_7_…: both kinds of session
 8  a turn lands where its history is not        test_8_…: a fresh engine is sent the log first.
                                                 For the loss of one of several engines:
                                                 engine/server/test_several_gateways.py::
                                                 test_sessions_of_a_lost_engine_move_to_another_engine
 9  KV of another adapter or salt is reused      test_9_…: a session's scope is fixed when it is
                                                 opened, and its forks inherit it; no adapters
10  logprob_start_len silently ignored           test_10_…: log-probabilities of outputs are the
                                                 same in all modes; those of prompts do not exist,
                                                 so no request accepts the option
11  no host tier beside sessions                 test_11_…
12  the sanity check is skipped with sessions    test_12_…
"""

import asyncio
from pathlib import Path

import pytest

from continuo.engine import SessionGroup
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
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import CheckedSession, collect_ids, prompt_ids
from tests.support.engines import digest_engine
from tests.support.retracting import RetractingScheduler

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
KINDS = pytest.mark.parametrize("streaming", [True, False])


def start_turn(
    core: CoreHarness, session: str, prompt: list[int], count: int, streaming: bool = True
) -> None:
    core.open(session, streaming=streaming)
    core.append(session, list(prompt))
    core.generate(session, count)


@KINDS
@AHEAD
def test_1_rejected_request_does_not_unlock_the_session(streaming: bool, ahead: int) -> None:
    core, prompt = CoreHarness(), [1, 2, 3, 9]
    start_turn(core, "s", prompt, 12, streaming=streaming)
    core.step()
    queued = [
        core.submit(Generate(core.next_number(), "s", f"queued {n}", Sampling(max_tokens=1)))
        for n in range(QUEUED_TURNS_MAX)
    ]
    assert queued == [None] * QUEUED_TURNS_MAX
    for n in range(3):
        before = list(core.sequence("s").ids), core.sequence("s").turn
        refused = core.expect_refusal(Generate(core.next_number(), "s", f"third {n}", Sampling()))
        assert (refused.code, refused.field) == ("busy", "turn")
        assert core.expect_refusal(AppendIds(core.next_number(), "s", [1000])).code == "bad_request"
        if streaming:
            assert (
                core.expect_refusal(AppendIds(core.next_number(), "s", [7, 7], offset=1)).field
                == "offset"
            )
        assert core.submit(AppendIds(core.next_number(), "s", [7, 7, 7])) is None, (
            "the append waits and rewrites nothing"
        )
        assert (list(core.sequence("s").ids), core.sequence("s").turn) == before
        core.step()
    core.run(ahead=ahead)
    output = oracle(prompt, 12)
    assert core.turn_ids("s") == output
    log = prompt + output
    for n in range(QUEUED_TURNS_MAX):
        assert core.turn_ids("s", f"queued {n}") == oracle(log, 1)
        log += core.turn_ids("s", f"queued {n}")
    assert list(core.sequence("s").ids) == log + [7] * 9
    assert len(core.events_of(TurnEnded)) == 1 + QUEUED_TURNS_MAX


@KINDS
@AHEAD
def test_2_retraction_does_not_commit_an_unfinished_turn(streaming: bool, ahead: int) -> None:
    """No other turn replaces the retracted one, and it ends once, as if never retracted."""
    core, prompt = CoreHarness(), prompt_ids(21)
    start_turn(core, "s", prompt, 12, streaming=streaming)
    for _ in range(6):
        core.step()
    sequence = core.sequence("s")
    partial_length = len(core.turn_ids("s"))
    assert 0 < partial_length < 12
    core.scheduler.retract(sequence)
    core.cache.rewind(sequence.lease, 0)
    assert not sequence.lease.pages
    assert list(sequence.ids) == prompt + core.turn_ids("s"), "a retraction changes no history"
    assert core.submit(AppendIds(core.next_number(), "s", [7, 7])) is None
    assert core.submit(Generate(core.next_number(), "s", "next", Sampling(max_tokens=3))) is None
    assert not core.events_of(TurnEnded)
    core.run(ahead=ahead)
    assert core.turn_ids("s") == oracle(prompt, 12)
    end = core.turn_end("s")
    assert (end.prompt_tokens, end.output_tokens, end.length) == (21, 12, 33)
    assert core.turn_ids("s", "next") == oracle([*prompt, *core.turn_ids("s"), 7, 7], 3)
    assert core.turn_end("s", "next").prompt_tokens == 35


def test_3_append_with_replace_needs_no_turn() -> None:
    core = CoreHarness()
    core.open("s", streaming=False)
    for turn in "abc":
        core.append("s", prompt_ids(5))
        core.generate("s", 3, turn)
        core.run()
    assert core.append("s", [8, 8], replace=True).length == 2
    core.generate("s", 4, "d")
    core.run()
    assert core.turn_ids("s", "d") == oracle([8, 8], 4)
    for erased in "abc":
        assert (
            core.expect_refusal(AppendIds(core.next_number(), "s", [1], after=erased)).field
            == "after"
        )
    assert core.append("s", [1], after="d").length == 7


def test_4_retraction_frees_every_page() -> None:
    core = CoreHarness(pages=32)
    for name in ("a", "b"):
        start_turn(core, name, prompt_ids(20, seed=ord(name)), 8)
    for _ in range(5):
        core.step()
    page_count = len(core.sequence("b").lease.pages)
    available, unreferenced = core.cache.usage.available_pages(), core.cache.tree.unreferenced
    lease = core.sequence("b").lease
    private = lease.private_pages
    assert private > 0
    assert core.cache.usage.exclusive_pages(lease) == page_count
    core.scheduler.retract(core.sequence("b"))
    assert core.cache.usage.available_pages() == available + page_count
    core.cache.rewind(lease, 0)
    assert core.cache.usage.available_pages() == available + page_count
    assert core.cache.tree.unreferenced == unreferenced + page_count - private
    assert core.sequence("b").committed == 0
    core.run()
    assert core.turn_ids("a") == oracle(prompt_ids(20, seed=ord("a")), 8)
    assert core.turn_ids("b") == oracle(prompt_ids(20, seed=ord("b")), 8)


@KINDS
@AHEAD
@pytest.mark.parametrize("host_pages", [0, 6])
def test_4_pool_for_two_sessions_serves_six_at_once(
    streaming: bool, ahead: int, host_pages: int
) -> None:
    """Six turns at once, each of which fills half of the pool."""
    core, names = CoreHarness(pages=16, host_pages=host_pages, batched_tokens=64), "abcdef"
    logs = {name: prompt_ids(8, seed=ord(name)) for name in names}
    for name in names:
        core.open(name, streaming=streaming)
        core.append(name, list(logs[name]))
    for name in names:
        core.generate(name, 24)
    core.run(ahead=ahead)
    for name in names:
        assert core.turn_ids(name) == oracle(logs[name], 24)
        assert core.turn_end(name).reason == "length"
    assert core.scheduler.admission.retractions > 0
    assert not core.scheduler.admission.turns


@AHEAD
def test_5_idle_sessions_hold_no_rows(ahead: int) -> None:
    core = CoreHarness(pages=400, rows=4)
    logs = {f"s{n}": prompt_ids(6, seed=n) for n in range(40)}
    for turn in ("first", "second"):
        for name, log in logs.items():
            if turn == "first":
                core.open(name)
                core.append(name, list(log))
            core.generate(name, 3, turn)
        core.run(ahead=ahead)
        for name, log in logs.items():
            assert core.turn_ids(name, turn) == oracle(log, 3)
            log += core.turn_ids(name, turn)


@KINDS
@AHEAD
@pytest.mark.parametrize("host_pages", [0, 20, 400])
def test_6_pool_for_three_sessions_serves_thirty_in_turns(
    streaming: bool, ahead: int, host_pages: int
) -> None:
    """Thirty idle sessions, each with a history that fills a third of the pool, run turns."""
    core = CoreHarness(pages=30, host_pages=host_pages, batched_tokens=64)
    logs = {f"s{n}": prompt_ids(32, seed=n) for n in range(30)}
    for turn in range(2):
        for name, log in logs.items():
            if not turn:
                core.open(name, streaming=streaming)
                core.append(name, list(log))
            core.generate(name, 3, str(turn))
            core.run(ahead=ahead)
            assert core.turn_ids(name, str(turn)) == oracle(log, 3)
            log += core.turn_ids(name, str(turn))
            if turn:
                residency = "host" if host_pages == 400 else "recomputed"
                assert core.turn_end(name, "1").residency == residency
    assert core.cache.evicted_pages > 0


@KINDS
def test_7_idle_timeout_counts_from_the_end_of_a_turn(streaming: bool) -> None:
    core = CoreHarness()
    core.open("s", timeout_s=10.0, streaming=streaming)
    core.append("s", prompt_ids(5))
    core.generate("s", 8)
    for _ in range(4):
        core.step()
        core.advance_clock(60.0)
    assert core.sequence("s").turn, "a turn of six timeouts continues"
    core.run()
    assert core.turn_ids("s") == oracle(prompt_ids(5), 8)
    core.advance_clock(9.9)
    assert core.append("s", [1]).length == 14, "the append restarts the timeout"
    core.advance_clock(9.9)
    assert not core.events_of(SessionExpired)
    core.advance_clock(0.2)
    assert core.events_of(SessionExpired) == [SessionExpired("s")]
    assert core.cache.usage.leased_pages == 0
    assert core.expect_refusal(AppendIds(core.next_number(), "s", [1])).code == "unknown_session"


def test_7_session_with_a_queued_turn_does_not_expire() -> None:
    core = CoreHarness()
    core.open("s", timeout_s=10.0)
    core.append("s", prompt_ids(5))
    core.generate("s", 4)
    assert core.submit(Generate(core.next_number(), "s", "next", Sampling(max_tokens=4))) is None
    core.advance_clock(100.0)
    core.run()
    assert core.turn_end("s", "next").reason == "length"
    assert not core.events_of(SessionExpired)


async def test_8_turn_has_its_history_on_a_restarted_engine(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        sessions = [await CheckedSession.open(harness.engine) for _ in range(3)]
        for turn in range(3):
            for n, session in enumerate(sessions):
                await session.run_turn(prompt_ids(7, seed=turn + n), 4)
            harness.kill()
        assert harness.launch_count >= 3


@AHEAD
def test_9_kv_of_another_cache_scope_is_not_reused(ahead: int) -> None:
    core, prompt = CoreHarness(pages=200), prompt_ids(40)
    for scope in ("adapter a", "adapter b"):
        core.open(scope, scope=scope)
        core.append(scope, list(prompt))
        core.generate(scope, 3)
        core.run(ahead=ahead)
        assert core.turn_end(scope).cached_tokens == 0
        before = core.runner.token_count
        core.fork(scope, f"fork of {scope}")
        core.close(scope)
        for session in (f"fork of {scope}", f"new in {scope}"):
            if session.startswith("new"):
                core.open(session, scope=scope)
                core.append(session, list(prompt))
            core.generate(session, 3)
            core.run(ahead=ahead)
        assert core.runner.token_count - before < len(prompt), "KV is reused within a scope"
    assert core.runner.token_count >= 2 * len(prompt)
    scopes = {core.sequence(f"fork of adapter {x}").lease.scope for x in "ab"}
    assert scopes == {"adapter a", "adapter b"}


async def test_10_log_probabilities_are_equal_in_every_mode(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        engine, sampling = harness.engine, Sampling(max_tokens=6, logprobs=3)
        scored: list[list[object]] = []
        for streaming in (True, False):
            session = await engine.open(streaming=streaming, group=SessionGroup(str(streaming)))
            await engine.append(session, prompt_ids(9))
            turn = await engine.generate(session, sampling)
            scored.append([(p.ids, p.logprobs) async for p in turn])
        once = await engine.complete(prompt_ids(9), sampling, group=SessionGroup("none"))
        scored.append([(p.ids, p.logprobs) async for p in once])
        assert scored[0] == scored[1] == scored[2]
        assert len(scored[0]) == 6


@AHEAD
def test_11_host_tier_keeps_kv_of_idle_sessions(ahead: int) -> None:
    """Only the last id of a session's history is computed again."""
    core = CoreHarness(pages=12, host_pages=40)
    logs = {name: prompt_ids(30, seed=ord(name)) for name in "abc"}
    for name in logs:
        core.open(name)
        core.append(name, list(logs[name]))
        core.run(ahead=ahead)
    assert core.cache.host_tier.used_pages > 0
    for name, log in logs.items():
        before = core.runner.token_count
        core.generate(name, 2)
        core.run(ahead=ahead)
        assert core.turn_ids(name) == oracle(log, 2)
        assert core.runner.token_count - before <= 2 + ahead
        assert core.turn_end(name).residency == "host"
        assert core.turn_end(name).prefilled_after_commit == 1


def test_12_audit_detects_faults_while_sessions_are_open() -> None:
    """The audit detects planted faults while one turn runs and another session is idle."""
    for fault in range(5):
        core = CoreHarness()
        start_turn(core, "idle", prompt_ids(30), 3)
        core.run()
        start_turn(core, "busy", prompt_ids(30, seed=1), 9)
        for _ in range(4):
            core.step()
        cache, lease = core.cache, core.sequence("idle").lease
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
def test_output_of_turns_does_not_depend_on_retractions(streaming: bool, ahead: int) -> None:
    """Turns are retracted before every third step; some of them are cancelled."""
    core = CoreHarness(scheduler=RetractingScheduler)
    names = "abcd"
    logs = {name: prompt_ids(9, seed=ord(name)) for name in names}
    for name in names:
        core.open(name, streaming=streaming)
        core.append(name, list(logs[name]))
    for round in range(3):
        for name in names:
            core.generate(name, 7, str(round))
        for _ in range(4):
            core.step()
        core.apply(CancelTurn(core.next_number(), "a", drop=bool(round % 2)))
        core.run(ahead=ahead)
        for name in names:
            output = core.turn_ids(name, str(round))
            assert output == oracle(logs[name], 7)[: len(output)]
            kept = [] if name == "a" and round % 2 else output
            logs[name] += kept
            assert list(core.sequence(name).ids) == logs[name]
            assert name == "a" or len(output) == 7
    assert core.scheduler.admission.retractions > 9


async def test_session_continues_after_an_abandoned_turn_stream(letters: Path) -> None:
    """The session continues when the next turn is requested, though no reader reads this one."""
    async with digest_engine(letters) as harness:
        session = await CheckedSession.open(harness.engine)
        await session.append(prompt_ids(6))
        abandoned = await harness.engine.generate(session.id, Sampling(max_tokens=5))
        turn = asyncio.create_task(
            harness.engine.generate(session.id, Sampling(max_tokens=3), turn="next")
        )
        output = oracle(session.token_ids, 5)
        assert await collect_ids(await turn) == oracle(session.token_ids + output, 3)
        assert await collect_ids(abandoned) == output


def test_refused_rewind_or_append_leaves_the_log_unchanged() -> None:
    core = CoreHarness()
    start_turn(core, "s", prompt_ids(6), 3)
    core.run()
    core.expect_refusal(RewindSession(core.next_number(), "s", 10))
    core.expect_refusal(AppendIds(core.next_number(), "s", [1], after="turn"))
    assert len(core.events_of(CommandRefused)) == 2
    assert core.append("s", [4]).length == 10

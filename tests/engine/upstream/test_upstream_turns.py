"""Tests of an engine whose ids a fake server draws, over vLLM and llama-server: turns, changes of
the log, and losses of the server."""

import asyncio
import random
from pathlib import Path

import pytest

from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.errors import TurnFailed
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.upstream import turn_requests
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engine_sessions import (
    CheckedSession,
    collect_ids,
    open_with,
    prompt_ids,
    recover_ids,
)
from tests.support.upstream_engines import FAKES, UpstreamHarness, upstream_engine
from tests.support.upstream_servers import FakeLlama, FakeVllm, Fault
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

PROMPT = prompt_ids(10, seed=3)


async def generate(harness: UpstreamHarness, sampling: Sampling) -> TurnStream:
    session = await open_with(harness.engine, PROMPT)
    return await harness.engine.generate(session, sampling)


def prompts_of(harness: UpstreamHarness) -> list[list[int]]:
    """Return the prompts of the requests of turns, in order."""
    return [body["prompt"] for body in harness.fake.requests if not harness.fake.is_prefill(body)]


async def test_random_life_draws_what_one_prefill_of_its_log_would(
    harness: UpstreamHarness,
) -> None:
    source = random.Random(5)
    session = await CheckedSession.open(harness.engine)
    for n in range(30):
        match source.randrange(4):
            case 0 if session.token_ids:
                to = source.randint(max(len(session.token_ids) - 20, 0), len(session.token_ids))
                await harness.engine.rewind(session.id, to)
                del session.token_ids[to:]
            case 1:
                span = prompt_ids(source.randint(0, 9), n)
                await harness.engine.append(session.id, span, "provisional")
            case 2:
                drop = source.random() < 0.5
                await session.run_cancelled_turn(prompt_ids(2, n), source.randint(1, 9), drop=drop)
            case _:
                length = source.randint(1, 12)
                await session.run_turn(prompt_ids(length, n), source.randint(1, 9))
    await session.close()
    assert (await harness.engine.fleet.stats()).sessions == 0


async def test_regular_session_branches_from_a_finished_turn(harness: UpstreamHarness) -> None:
    session = await harness.engine.open(streaming=False)
    await harness.engine.append(session, PROMPT)
    first = await collect_ids(
        await harness.engine.generate(session, Sampling(max_tokens=3), turn="a")
    )
    for extra in ([1], [2, 3]):
        await harness.engine.append(session, extra, after="a")
        turn = await harness.engine.generate(session, Sampling(max_tokens=4))
        assert await collect_ids(turn) == oracle([*PROMPT, *first, *extra], 4)


async def test_fork_continues_apart_from_its_parent(harness: UpstreamHarness) -> None:
    parent = await open_with(harness.engine, PROMPT)
    child = await harness.engine.fork(parent, 7)
    turns = [
        await harness.engine.generate(each, Sampling(max_tokens=5)) for each in (parent, child)
    ]
    outputs = await asyncio.gather(*map(collect_ids, turns))
    assert outputs == [oracle(PROMPT, 5), oracle(PROMPT[:7], 5)]


async def test_turn_ends_at_a_stop_id_and_exactly_at_a_stop_string(
    harness: UpstreamHarness,
) -> None:
    expected = oracle(PROMPT, 20)
    turn = await generate(harness, Sampling(max_tokens=20, stop_ids=(expected[4],)))
    assert await collect_ids(turn) == expected[: expected.index(expected[4]) + 1]
    assert turn.ended is not None
    assert turn.ended.reason == "stop"
    text = harness._text.decode(expected[6:8])
    turn = await generate(harness, Sampling(max_tokens=20, stop=(text,)))
    assert await collect_ids(turn) == expected[:8]
    assert turn.ended is not None
    assert (turn.ended.reason, turn.ended.stop) == ("stop", text)


async def test_sampled_turn_has_the_draws_of_its_seed(harness: UpstreamHarness) -> None:
    sampling = Sampling(temperature=1.0, seed=9, max_tokens=8)
    assert await collect_ids(await generate(harness, sampling)) == oracle(
        PROMPT, 8, sampling=sampling, seed=9
    )


async def test_ids_are_computed_while_they_are_typed(harness: UpstreamHarness) -> None:
    session = await open_with(harness.engine, PROMPT)
    await wait_until(lambda: harness.fake.prefills and not harness.fake.running)
    for length in range(1, 9):
        await harness.engine.append(session, PROMPT[:length], "provisional")
    await wait_until(lambda: harness.core.sessions._find(session).computed >= 16)
    await harness.engine.append(session, PROMPT[:8], "commit")
    turn = await harness.engine.generate(session, Sampling(max_tokens=2))
    assert await collect_ids(turn) == oracle(PROMPT + PROMPT[:8], 2)
    ended = turn.ended
    assert ended is not None
    assert ended.cached_tokens == 0
    assert ended.prefilled_after_commit <= len(PROMPT) + 8 - 16
    assert ended.computed_tokens >= len(PROMPT) + 8


async def test_cancelled_turn_closes_its_request(harness: UpstreamHarness) -> None:
    harness.fake.faults.append(Fault(pause_after=2))
    turn = await generate(harness, Sampling())
    await anext(aiter(turn))
    await harness.engine.cancel(turn.session)
    await wait_until(lambda: harness.fake.aborted == 1)
    assert harness.fake.running == 0


async def test_closed_session_closes_its_requests(harness: UpstreamHarness) -> None:
    harness.fake.faults.append(Fault(pause_after=2))
    turn = await generate(harness, Sampling())
    await anext(aiter(turn))
    await harness.engine.close(turn.session)
    await wait_until(lambda: not harness.fake.running)


async def test_paused_turn_continues_after_its_last_id(harness: UpstreamHarness) -> None:
    harness.fake.faults.append(Fault(pause_after=3))
    turn = await generate(harness, Sampling(max_tokens=9))
    sequence = harness.core.sessions._find(turn.session)
    await wait_until(lambda: len(sequence.ids) == len(PROMPT) + 3)
    await harness.engine.pause(turn.session)
    await harness.engine.resume(turn.session)
    assert await collect_ids(turn) == oracle(PROMPT, 9)
    assert prompts_of(harness) == [PROMPT, PROMPT + oracle(PROMPT, 3)]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=503),
        Fault(cut_after=0),
        Fault(cut_after=1),
        Fault(cut_after=8),
        Fault(fail_after=4),
    ],
)
async def test_turn_continues_after_a_loss_without_repeating_an_id(
    harness: UpstreamHarness, fault: Fault
) -> None:
    harness.fake.faults.extend((fault, fault))
    turn = await generate(harness, Sampling(max_tokens=20))
    assert await collect_ids(turn) == oracle(PROMPT, 20)
    assert turn.ended is not None
    assert (turn.ended.prompt_tokens, turn.ended.output_tokens) == (len(PROMPT), 20)
    received = fault.cut_after or fault.fail_after or 0
    expected = [PROMPT + oracle(PROMPT, n * received) for n in range(3)]
    assert prompts_of(harness) == expected


async def test_turn_waits_for_a_server_that_was_stopped(harness: UpstreamHarness) -> None:
    harness.fake.faults.append(Fault(pause_after=3))
    turn = await generate(harness, Sampling(max_tokens=9))
    await anext(aiter(turn))
    await harness.stop_server()
    await harness.start_server()
    await collect_ids(turn)
    assert turn.ids == oracle(PROMPT, 9)


async def test_turn_fails_after_a_time_without_a_server(
    harness: UpstreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_requests, "GIVE_UP_S", 0.0)
    harness.fake.faults.append(Fault(cut_after=0))
    with pytest.raises(TurnFailed, match="the server is lost"):
        await collect_ids(await generate(harness, Sampling(max_tokens=9)))


@pytest.mark.parametrize("fault", [Fault(status=400), Fault(fail_after=3, status=400)])
async def test_refused_turn_fails_in_the_words_of_the_server(
    harness: UpstreamHarness, fault: Fault
) -> None:
    harness.fake.faults.append(fault)
    turn = await generate(harness, Sampling(max_tokens=9))
    with pytest.raises(TurnFailed, match="out of order"):
        await collect_ids(turn)
    assert turn.ids == oracle(PROMPT, fault.fail_after or 0)
    assert len(prompts_of(harness)) == 1
    again = await harness.engine.generate(turn.session, Sampling(max_tokens=4))
    assert await collect_ids(again) == oracle(PROMPT + turn.ids, 4)


@pytest.mark.parametrize(("kind", "expected"), [("vllm", "unknown"), ("llama", "hot")])
async def test_residency_is_unknown_where_kv_is_not_pinned(
    letters: Path, kind: str, expected: str
) -> None:
    async with upstream_engine(letters, FAKES[kind]()) as harness:
        turn = await generate(harness, Sampling(max_tokens=3, ignore_eos=True))
        await collect_ids(turn)
        turn = await harness.engine.generate(turn.session, Sampling(max_tokens=1))
        await collect_ids(turn)
        assert turn.ended is not None
        assert turn.ended.residency == expected


async def test_kv_of_a_session_on_vllm_is_unknown(letters: Path) -> None:
    async with upstream_engine(letters, FakeVllm()) as harness:
        turn = await generate(harness, Sampling(max_tokens=3))
        await collect_ids(turn)
        info = await harness.engine.info(turn.session)
        assert (info.is_kv_known, info.lost_tokens) == (False, 0)
        assert info.committed >= len(PROMPT)


async def test_turn_of_a_session_on_llama_server_reads_its_file(letters: Path) -> None:
    fake = FakeLlama(slots=1)
    fake.files, fake.end_ids = {}, frozenset()
    async with upstream_engine(letters, fake) as harness:
        turns = [await generate(harness, Sampling(max_tokens=70))]
        await collect_ids(turns[0])
        await collect_ids(await generate(harness, Sampling(max_tokens=3)))
        info = await harness.engine.info(turns[0].session)
        assert (info.committed, info.lost_tokens) == (0, 0)
        assert info.host_tokens >= len(PROMPT) + 69
        turns.append(await harness.engine.generate(turns[0].session, Sampling(max_tokens=3)))
        await collect_ids(turns[1])
        assert [turn.ended and turn.ended.residency for turn in turns] == ["hot", "host"]


async def test_kv_of_a_session_on_llama_server_is_lost_with_its_slot(letters: Path) -> None:
    fake = FakeLlama(slots=1)
    fake.end_ids = frozenset()
    async with upstream_engine(letters, fake) as harness:
        turns = [await generate(harness, Sampling(max_tokens=3))]
        await collect_ids(turns[0])
        info = await harness.engine.info(turns[0].session)
        assert (info.is_kv_known, info.lost_tokens) == (True, 0)
        assert info.committed >= len(PROMPT)
        turns.append(await generate(harness, Sampling(max_tokens=3)))
        await collect_ids(turns[1])
        lost, kept = [await harness.engine.info(turn.session) for turn in turns]
        assert (lost.committed, lost.lost_tokens) == (0, info.committed)
        assert (kept.committed, kept.lost_tokens) == (info.committed, 0)


DEPENDENT = Sampling(temperature=1.0, seed=7, max_tokens=9, presence_penalty=0.5)
"""Sampling whose ids depend on more than the ids before them."""


async def test_output_with_penalties_is_repeated_and_compared(harness: UpstreamHarness) -> None:
    harness.fake.faults.append(Fault(cut_after=4))
    turn = await generate(harness, DEPENDENT)
    assert await collect_ids(turn) == oracle(PROMPT, 9, sampling=DEPENDENT, seed=7)
    assert prompts_of(harness) == [PROMPT, PROMPT]


async def test_output_with_a_grammar_is_repeated_and_compared(letters: Path) -> None:
    """The fake knows no grammar; this one allows all that it draws."""
    expected = oracle(PROMPT, 9, sampling=Sampling(temperature=1.0), seed=7)
    unused = next(id for id in range(VOCABULARY) if id not in expected)
    lark = Grammar("lark", r"start: /(.|\n)*/")
    guided = Sampling(temperature=1.0, seed=7, max_tokens=9, grammar=lark, stop_ids=(unused,))
    async with upstream_engine(letters, FakeVllm()) as harness:
        harness.fake.faults.append(Fault(cut_after=4))
        turn = await generate(harness, guided)
        assert await collect_ids(turn) == expected
        assert prompts_of(harness) == [PROMPT, PROMPT]


async def test_other_ids_after_a_loss_fail_the_turn(harness: UpstreamHarness) -> None:
    harness.fake.faults.extend((Fault(cut_after=4), Fault(other_ids=True)))
    turn = await generate(harness, DEPENDENT)
    with pytest.raises(TurnFailed, match="repeated the output with other ids"):
        await collect_ids(turn)
    assert turn.ids == oracle(PROMPT, 4, sampling=DEPENDENT, seed=7)


async def test_turn_continues_on_the_next_engine(harness: UpstreamHarness) -> None:
    """The engine process dies, and its requests with it."""
    harness.fake.faults.append(Fault(pause_after=3))
    turn = await generate(harness, Sampling(max_tokens=9))
    await anext(aiter(turn))
    harness.kill()
    await recover_ids(harness.engine, turn, PROMPT)
    assert turn.ids == oracle(PROMPT, 9)
    assert harness.launch_count == 2


async def test_id_beyond_the_vocabulary_fails_the_turn(letters: Path) -> None:
    class WideVllm(FakeVllm):
        def _choice(self, body: dict, id: int, *others: object) -> dict:
            return super()._choice(body, id + VOCABULARY, *others)  # type: ignore[arg-type]

    async with upstream_engine(letters, WideVllm()) as harness:
        with pytest.raises(TurnFailed, match="97"):
            await collect_ids(await generate(harness, Sampling(max_tokens=3)))


async def test_end_by_llama_server_ends_the_turn(letters: Path) -> None:
    expected, fake = oracle(PROMPT, 20), FakeLlama()
    fake.end_ids = frozenset((expected[3],))
    async with upstream_engine(letters, fake) as harness:
        turn = await generate(harness, Sampling(max_tokens=20))
        assert await collect_ids(turn) == expected[: expected.index(expected[3]) + 1]
        assert turn.ended is not None
        assert turn.ended.reason == "stop"


async def test_lark_on_llama_server_fails_the_turn_by_name(letters: Path) -> None:
    async with upstream_engine(letters, FakeLlama()) as harness:
        lark = Sampling(grammar=Grammar("lark", "start: /a/"), stop_ids=(0,))
        with pytest.raises(TurnFailed, match="no Lark"):
            await collect_ids(await generate(harness, lark))
        assert not prompts_of(harness)


async def test_ids_left_out_by_llama_server_fail_the_turn(letters: Path) -> None:
    async with upstream_engine(letters, FakeLlama()) as harness:
        harness.fake.faults.append(Fault(lost=(2,)))
        turn = await generate(harness, Sampling(max_tokens=9))
        with pytest.raises(TurnFailed, match="left out ids"):
            await collect_ids(turn)
        assert turn.ids == oracle(PROMPT, 2)


async def test_load_and_stats_are_those_of_the_server(letters: Path) -> None:
    async with upstream_engine(letters, FakeVllm()) as harness:
        await generate(harness, Sampling(max_tokens=3))
        stats = await harness.engine.fleet.stats()
        assert (stats.pages_total, stats.pages_leased, stats.sessions) == (50, 12, 1)
        load = harness.core.sessions.measure_load()
        assert (load.rows, load.draining) == (256, False)
        await harness.stop_server()
        await harness.core.watch.measure()
        assert harness.core.sessions.measure_load().draining
        await harness.start_server()
        await harness.core.watch.measure()
        assert not harness.core.sessions.measure_load().draining

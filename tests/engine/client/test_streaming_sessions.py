"""Tests of streaming sessions, over a real socket and the real loop, on a null device.

The output depends on every id of the past as KV holds it, so that equality with `oracle`, which
knows the ids alone, shows that no KV was lost, mixed up or computed from the wrong page.
"""

import asyncio
from pathlib import Path

import pytest

from continuo.engine import SessionGroup
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.errors import BadRequest, TooLong, TurnFailed, UnknownEngineSession
from continuo.engine.wire.messages import Sampling
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import CheckedSession, collect_ids, open_with
from tests.support.engines import digest_engine

pytestmark = pytest.mark.slow

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


async def generate_ids(engine: EngineClient, session: str, ids: list[int], count: int) -> list[int]:
    await engine.append(session, ids)
    return await collect_ids(await engine.generate(session, Sampling(max_tokens=count)))


@AHEAD
async def test_successive_turns_of_one_session_continue_its_log(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        session = await CheckedSession.open(harness.engine)
        for turn in range(8):
            await session.run_turn([turn * 3 + n for n in range(1 + turn * 3 % 7)], 5)
        assert (await harness.engine.info(session.id)).length == len(session.token_ids)


@AHEAD
async def test_turn_computes_only_new_tokens(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        session = await harness.engine.open()
        await generate_ids(harness.engine, session, list(range(60)), 4)
        before = harness.runner.token_count
        turn_ids = await generate_ids(harness.engine, session, [1, 2, 3], 4)
        assert len(turn_ids) == 4
        # the id drawn last, the three new ones, and the output but its last id; a step ahead may
        # compute one more, and an append already prefilled has its last id computed once more
        assert harness.runner.token_count - before <= 1 + 3 + 3 + ahead + 1


@AHEAD
async def test_concurrent_sessions_do_not_mix_their_kv(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead, pages=400) as harness:

        async def converse(number: int) -> None:
            session = await CheckedSession.open(harness.engine)
            for turn in range(4):
                new = [(number * 7 + turn * n) % 90 for n in range(1 + (number + turn) % 9)]
                await session.run_turn(new, 1 + number % 6)
            await session.close()

        await asyncio.gather(*(converse(n) for n in range(20)))
        stats = await harness.engine.fleet.stats()
        assert stats.sessions == 0
        assert stats.pages_leased == 0
        assert stats.pages_free + stats.pages_tree == stats.pages_total


@AHEAD
async def test_full_page_pool_serves_all_sessions_eventually(letters: Path, ahead: int) -> None:
    """Twelve sessions in a pool for two; turns are retracted and idle sessions evicted."""
    async with digest_engine(letters, steps_ahead=ahead, pages=10, max_model_len=40) as harness:

        async def converse(number: int) -> None:
            session = await CheckedSession.open(harness.engine)
            for turn in range(3):
                await session.run_turn([(number * 5 + turn + n) % 90 for n in range(4)], 6)

        async with asyncio.timeout(20):
            await asyncio.gather(*(converse(n) for n in range(12)))
        assert (await harness.engine.fleet.stats()).evicted_pages > 0


@AHEAD
async def test_shared_prefix_is_computed_once(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        prompt = list(range(40))
        first = await harness.engine.open(group=SessionGroup("tenant"))
        await generate_ids(harness.engine, first, [*prompt, 50], 3)
        second = await harness.engine.open(group=SessionGroup("tenant"))
        before = harness.runner.token_count
        await harness.engine.append(second, [*prompt, 60])
        turn = await harness.engine.generate(second, Sampling(max_tokens=3))
        assert await collect_ids(turn) == oracle([*prompt, 60], 3)
        assert turn.ended is not None
        assert turn.ended.cached_tokens >= 40
        assert harness.runner.token_count - before < 10


async def test_no_kv_is_shared_across_cache_scopes(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        for scope in ("a", "b"):
            session = await harness.engine.open(group=SessionGroup(scope))
            before = harness.runner.token_count
            await generate_ids(harness.engine, session, list(range(40)), 1)
            assert harness.runner.token_count - before >= 40


@AHEAD
async def test_rewind_and_fork_recompute_no_tokens(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        engine = harness.engine
        session = await engine.open()
        log = list(range(30))
        log += await generate_ids(engine, session, log[:], 9)
        before = harness.runner.token_count
        assert await engine.rewind(session, 33) == 33
        child = await engine.fork(session, 21)
        rewound = await generate_ids(engine, session, [7], 4)
        forked = await generate_ids(engine, child, [8], 4)
        assert rewound == oracle([*log[:33], 7], 4)
        assert forked == oracle([*log[:21], 8], 4)
        assert harness.runner.token_count - before <= 2 * (1 + 1 + 3 + ahead)


@AHEAD
@pytest.mark.parametrize("at", [0, 7, 21, 24, 30])
async def test_prompt_of_a_running_turn_is_forked_without_waiting(
    letters: Path, ahead: int, at: int
) -> None:
    async with digest_engine(letters, steps_ahead=ahead, step_s=0.002) as harness:
        engine = harness.engine
        session = await engine.open()
        log = list(range(30))
        await engine.append(session, log)
        turn = await engine.generate(session, Sampling(max_tokens=120))
        reading = asyncio.create_task(collect_ids(turn))
        while turn.received < 5:
            await asyncio.sleep(0.001)
        before = harness.runner.token_count
        child = await engine.fork(session, at)
        assert await generate_ids(engine, child, [8], 4) == oracle([*log[:at], 8], 4)
        assert turn.ended is None, "the fork did not wait for the turn"
        assert harness.runner.token_count - before <= turn.received + 5 + 2 * ahead, (
            "the fork recomputed no tokens"
        )
        waiting = asyncio.create_task(engine.fork(session, 40))
        assert await reading == oracle(log, 120)
        await engine.close(await waiting)


@AHEAD
async def test_prompt_can_be_forked_while_it_is_prefilled(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead, step_s=0.005, batched_tokens=4) as harness:
        engine = harness.engine
        session = await engine.open()
        log = list(range(90))
        await engine.append(session, log)
        turn = await engine.generate(session, Sampling(max_tokens=3))
        children = [await engine.fork(session, at) for at in (10, 45, 89)]
        assert turn.received == 0
        for child, at in zip(children, (10, 45, 89), strict=True):
            assert await generate_ids(engine, child, [8], 2) == oracle([*log[:at], 8], 2)
        assert await collect_ids(turn) == oracle(log, 3)


@AHEAD
async def test_cancel_keeps_the_output_so_far(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead, step_s=0.002) as harness:
        session = await CheckedSession.open(harness.engine)
        ended = await session.run_cancelled_turn([1, 2, 3], after=5)
        length = len(session.token_ids)
        assert length >= 3 + 5
        assert (await harness.engine.info(session.id)).length == length == ended.length
        await session.run_turn([4], 3)


async def test_cancel_with_discard_output_removes_the_output(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.002) as harness:
        session = await open_with(harness.engine, [1, 2, 3])
        turn = await harness.engine.generate(session, Sampling())
        assert await harness.engine.cancel(session, turn.id, discard_output=True) == 3
        await collect_ids(turn)
        assert await generate_ids(harness.engine, session, [4], 3) == oracle([1, 2, 3, 4], 3)


async def test_cancel_of_an_ended_turn_changes_nothing(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        session = await open_with(harness.engine, [1])
        turn = await harness.engine.generate(session, Sampling(max_tokens=2))
        await collect_ids(turn)
        assert await harness.engine.cancel(session, turn.id) == 3


@AHEAD
async def test_appends_and_turns_queue_in_order_while_a_turn_runs(
    letters: Path, ahead: int
) -> None:
    async with digest_engine(letters, steps_ahead=ahead, step_s=0.001) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2])
        first = await engine.generate(session, Sampling(max_tokens=6))
        appended = asyncio.create_task(engine.append(session, [9, 9]))
        second = asyncio.create_task(engine.generate(session, Sampling(max_tokens=4)))
        output = await collect_ids(first)
        assert output == oracle([1, 2], 6)
        assert await appended == 10
        assert await collect_ids(await second) == oracle([1, 2, *output, 9, 9], 4)


@AHEAD
async def test_stop_ids_and_stop_strings_end_the_turn_immediately(
    letters: Path, ahead: int
) -> None:
    prompt = [5, 6, 7]
    ids = oracle(prompt, 12)
    async with digest_engine(letters, steps_ahead=ahead) as harness:
        engine = harness.engine
        session = await open_with(engine, prompt)
        turn = await engine.generate(session, Sampling(stop_ids=(ids[4],), max_tokens=12))
        pieces = [piece async for piece in turn]
        assert [id for p in pieces for id in p.ids] == ids[: ids.index(ids[4]) + 1]
        assert "".join(p.text for p in pieces) == engine.text.decode(ids[: ids.index(ids[4])])
        assert turn.ended is not None
        assert turn.ended.reason == "stop"

        await engine.rewind(session, len(prompt))
        stop = engine.text.decode(ids[5:7])
        turn = await engine.generate(session, Sampling(stop=(stop,), max_tokens=12))
        pieces = [piece async for piece in turn]
        whole = engine.text.decode(ids)
        assert "".join(p.text for p in pieces) == whole[: whole.index(stop)]
        assert turn.ended is not None
        assert (turn.ended.reason, turn.ended.stop) == ("stop", stop)


@AHEAD
async def test_seed_gives_the_same_output_beside_other_sessions(letters: Path, ahead: int) -> None:
    async with digest_engine(letters, steps_ahead=ahead, pages=200) as harness:
        engine = harness.engine

        async def sampled(seed: int | None) -> tuple[list[int], int]:
            session = await open_with(engine, [1, 2, 3])
            turn = await engine.generate(
                session, Sampling(max_tokens=8, temperature=1.0, seed=seed)
            )
            ids = await collect_ids(turn)
            assert turn.ended is not None
            return ids, turn.ended.seed

        alone = await sampled(7)
        together = await asyncio.gather(*(sampled(n) for n in range(10)))
        assert together[7] == alone
        assert len({tuple(ids) for ids, _ in together}) > 5
        drawn, seed = await sampled(None)
        assert await sampled(seed) == (drawn, seed)


async def test_non_finite_row_fails_only_its_own_turn(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        harness.runner.nan_ids = {66}
        good, bad = await harness.engine.open(), await harness.engine.open()
        await harness.engine.append(bad, [1, 66])
        await harness.engine.append(good, [1, 2])
        failing = await harness.engine.generate(bad, Sampling(max_tokens=3))
        fine = await harness.engine.generate(good, Sampling(max_tokens=3))
        with pytest.raises(TurnFailed, match="not finite"):
            await collect_ids(failing)
        assert await collect_ids(fine) == oracle([1, 2], 3)
        assert await generate_ids(harness.engine, bad, [3], 3) == oracle([1, 66, 3], 3)


@AHEAD
async def test_failed_step_fails_its_turns_and_the_engine_keeps_running(
    letters: Path, ahead: int
) -> None:
    async with digest_engine(letters, steps_ahead=ahead, step_s=0.001) as harness:
        session = await open_with(harness.engine, [1, 2])
        turn = await harness.engine.generate(session, Sampling(max_tokens=50))
        output: list[int] = []

        async def read_output() -> None:
            async for piece in turn:
                output.extend(piece.ids)
                harness.runner.failing_steps = set(range(1000))

        with pytest.raises(TurnFailed, match="on fire"):
            await read_output()
        harness.runner.failing_steps = set()
        length = (await harness.engine.info(session)).length
        assert length == 2 + len(output)
        assert await generate_ids(harness.engine, session, [3], 3) == oracle([1, 2, *output, 3], 3)


async def test_refused_commands_change_no_state(letters: Path) -> None:
    async with digest_engine(letters, max_model_len=20) as harness:
        engine = harness.engine
        session = await open_with(engine, [1, 2, 3], capacity_tokens=10)
        with pytest.raises(TooLong, match=r"would be 11 tokens long; .* holds 10"):
            await engine.append(session, [1] * 8)
        with pytest.raises(BadRequest, match="from 0 to 96") as caught:
            await engine.append(session, [97])
        assert caught.value.field == "ids"
        with pytest.raises(BadRequest, match="to is 4; it must be from 0 to 3"):
            await engine.rewind(session, 4)
        with pytest.raises(BadRequest, match="at is -1"):
            await engine.fork(session, -1)
        with pytest.raises(BadRequest, match="already open"):
            await engine.open(session)
        with pytest.raises(BadRequest, match="capacity_tokens is 21; it must be from 1 to 20"):
            await engine.open(capacity_tokens=21)
        with pytest.raises(UnknownEngineSession):
            await engine.append("missing", [1])
        empty = await engine.open()
        with pytest.raises(BadRequest, match="empty"):
            await engine.generate(empty, Sampling())
        for field, sampling in {
            "temperature": Sampling(temperature=float("nan")),
            "top_p": Sampling(top_p=0.0),
            "top_k": Sampling(top_k=-1),
            "max_tokens": Sampling(max_tokens=0),
            "min_p": Sampling(min_p=1.5),
            "logprobs": Sampling(logprobs=21),
            "presence_penalty": Sampling(presence_penalty=3),
            "logit_bias": Sampling(logit_bias={97: 1.0}),
        }.items():
            with pytest.raises(BadRequest) as caught:
                await engine.generate(session, sampling)
            assert caught.value.field == field
        assert await collect_ids(await engine.generate(session, Sampling())) == oracle([1, 2, 3], 7)
        with pytest.raises(TooLong, match="10 of 10"):
            await engine.generate(session, Sampling())


async def test_closing_a_session_cancels_its_turn_and_deferred_commands(letters: Path) -> None:
    async with digest_engine(letters, step_s=0.002) as harness:
        session = await open_with(harness.engine, [1])
        turn = await harness.engine.generate(session, Sampling())
        waiting = asyncio.create_task(harness.engine.append(session, [2]))
        await asyncio.sleep(0.01)
        await harness.engine.close(session)
        await collect_ids(turn)
        assert turn.ended is not None
        assert turn.ended.reason == "cancelled"
        with pytest.raises(UnknownEngineSession):
            await waiting
        with pytest.raises(UnknownEngineSession):
            await harness.engine.info(session)


async def test_long_prompt_leaves_room_for_short_turns_in_each_step(letters: Path) -> None:
    async with digest_engine(letters, batched_tokens=8, step_s=0.002) as harness:
        engine = harness.engine
        long, short = await engine.open(), await engine.open()
        await engine.append(long, list(range(90)) + list(range(90)))
        long_output = asyncio.create_task(
            collect_ids(await engine.generate(long, Sampling(max_tokens=1)))
        )
        assert await generate_ids(engine, short, [1, 2], 3) == oracle([1, 2], 3)
        assert not long_output.done()
        assert await long_output == oracle(list(range(90)) + list(range(90)), 1)


async def test_prefill_time_starts_with_the_first_chunk(letters: Path) -> None:
    """Prefill time of a long prompt does not count as queue time."""
    step_s, chunk, chunks = 0.03, 8, 5
    async with digest_engine(letters, batched_tokens=chunk, step_s=step_s) as harness:
        turn = await harness.engine.complete([1] * (chunk * chunks), Sampling(max_tokens=1))
        assert [piece async for piece in turn]
    assert turn.ended is not None
    assert turn.ended.prefill_s >= (chunks - 1) * step_s

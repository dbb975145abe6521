"""The reference's stress and leak kits, on our door. What its servers check after every step, the
loop here audits after every step; where it asserts that the server lives, we compare every answer
with one fresh prefill as well.

    row of the reference                     here
    kv_cache_inheritance                     test_kv_cache_inheritance
    leak_logprob_concurrent                  test_leak_logprob_concurrent
    test_session_logprob_leak                test_logprobs_equal_one_shot
    stress_concurrent_sessions               test_stress_concurrent_sessions
    first leak test (4 by 5 by 1,500)        test_first_leak
    nth_mid_abort_recovery                   test_nth_mid_abort_recovery
    first_mid_abort_recovery                 test_first_mid_abort_recovery
    preabort_recovery                        test_preabort_recovery
    abort-leak kit                           test_abort_leak

Its server variants are ours too, but for speculation, sliding windows and log-probabilities of
prompts, which do not exist here: a chunk of 128 beside decodes is every chunk of ours.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.core.schedule import Scheduler
from continuo.engine.errors import BadRequest, TooLong
from continuo.engine.wire.messages import Sampling, TokenLogprobs
from tests.support.engine_sessions import Talk, complete, is_healthy, read, words
from tests.support.engines import Bench, digest_engine
from tests.support.retracting import RetractingScheduler

VARIANTS: dict[str, dict[str, Any]] = {
    "chunk-512": {"page_size": 1, "pages": 2_200, "batched_tokens": 512},
    "chunk-512-ahead": {
        "page_size": 16,
        "pages": 700,
        "batched_tokens": 512,
        "steps_ahead": 1,
    },
    "chunk-8": {"page_size": 16, "pages": 700, "batched_tokens": 8},
    "retract-mixed-chunk-128": {
        "page_size": 1,
        "pages": 2_200,
        "batched_tokens": 128,
        "scheduler": RetractingScheduler,
    },
    "retract-large-page": {
        "page_size": 256,
        "pages": 100,
        "batched_tokens": 4_096,
        "scheduler": RetractingScheduler,
    },
    "retract-large-page-ahead": {
        "page_size": 256,
        "pages": 100,
        "batched_tokens": 4_096,
        "steps_ahead": 1,
        "scheduler": RetractingScheduler,
    },
    "host-tier-small-pool": {
        "page_size": 16,
        "pages": 180,
        "batched_tokens": 128,
        "steps_ahead": 1,
        "host_pages": 400,
    },
    "retract-small-pool": {
        "page_size": 4,
        "pages": 500,
        "batched_tokens": 128,
        "scheduler": RetractingScheduler,
    },
}


HEAVY = pytest.mark.parametrize(
    "variant", ["chunk-512-ahead", "retract-large-page", "host-tier-small-pool"], indirect=True
)
"""For the loads that take long: the variants that differ most."""


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


def engine_of(letters: Path, variant: str, **more: Any) -> AbstractAsyncContextManager[Bench]:
    settings = {"max_model_len": 1_700, "rows": 32, **VARIANTS[variant], **more}
    return digest_engine(letters, **settings)


async def test_kv_cache_inheritance(letters: Path, variant: str) -> None:
    """A later turn finds all of the past but the last id, whose KV is not computed when a turn ends
    by length; of the new words it may find what was prefilled before the turn was asked for."""
    async with engine_of(letters, variant) as bench:
        talk = await Talk.open(bench.engine)
        for turn in range(3):
            before = len(talk.log)
            ended = await talk.say(words(9, seed=turn), 12)
            if before:
                assert before - 1 <= ended.cached_tokens < before + 9
                assert ended.residency == "hot"
        await talk.close()
        assert await is_healthy(bench.engine, sessions=0)


@HEAVY
@pytest.mark.parametrize("logprobs", [None, 0, 5])
async def test_leak_logprob_concurrent(letters: Path, variant: str, logprobs: int | None) -> None:
    """All turns of six sessions fired together; sessions opened and closed in each round."""
    sampling = Sampling(max_tokens=8, logprobs=logprobs)
    async with engine_of(letters, variant) as bench:
        for round in range(10):
            talks = [await Talk.open(bench.engine) for _ in range(6)]
            for turn in range(5):
                await asyncio.gather(
                    *(
                        talk.say(words(11, seed=n + turn + round), 8, sampling)
                        for n, talk in enumerate(talks)
                    )
                )
            await asyncio.gather(*(talk.close() for talk in talks))
            assert await is_healthy(bench.engine, sessions=0)


@HEAVY
async def test_logprobs_equal_one_shot(letters: Path, variant: str) -> None:
    """Exactly: each output's log-probabilities, however its KV was kept, against one request that
    re-sends everything."""
    sampling = Sampling(max_tokens=16, logprobs=2)

    async def one(engine: EngineClient, number: int) -> None:
        session, log = await engine.open(cache_scope="session"), list[int]()
        for turn in range(5):
            log += words(7 + number, seed=turn)
            await engine.append(session, log[-7 - number :])
            ids, inherited = await scored(await engine.generate(session, sampling))
            again, fresh = await scored(
                await engine.complete(log, sampling, cache_scope=f"{number} {turn}")
            )
            assert (ids, inherited) == (again, fresh)
            assert len(inherited) == 16
            log += ids

    async with engine_of(letters, variant) as bench:
        await asyncio.gather(*(one(bench.engine, n) for n in range(4)))


async def scored(turn: Any) -> tuple[list[int], list[TokenLogprobs]]:
    pieces = [piece async for piece in turn]
    return (
        [id for piece in pieces for id in piece.ids],
        [each for piece in pieces for each in piece.logprobs or []],
    )


@HEAVY
async def test_stress_concurrent_sessions(letters: Path, variant: str) -> None:
    """Eight sessions of six long turns with four plain requests beside each, all at once."""
    async with engine_of(letters, variant) as bench:
        engine = bench.engine
        talks = [await Talk.open(engine) for _ in range(8)]
        for turn in range(6):
            await asyncio.gather(
                *(talk.say(words(200 + n, seed=8 * turn + n), 16) for n, talk in enumerate(talks)),
                *(complete(engine, words(60 + n, seed=n), 16) for n in range(4)),
            )
        await asyncio.gather(*(complete(engine, words(30, seed=n), 16) for n in range(3)))
        assert await is_healthy(engine, sessions=8)
        await asyncio.gather(*(talk.close() for talk in talks))
        assert await is_healthy(engine, sessions=0)


@HEAVY
async def test_first_leak(letters: Path, variant: str) -> None:
    """Four sessions, five turns of what 1,500 characters are, two plain requests a turn."""
    async with engine_of(letters, variant, max_model_len=2_000) as bench:
        engine = bench.engine
        talks = [await Talk.open(engine) for _ in range(4)]
        for turn in range(5):
            await asyncio.gather(
                *(talk.say(words(370, seed=4 * turn + n), 16) for n, talk in enumerate(talks)),
                *(complete(engine, words(370, seed=n), 16) for n in range(2)),
            )
        await asyncio.gather(*(talk.close() for talk in talks))
        assert await is_healthy(engine, sessions=0)


async def test_nth_mid_abort_recovery(letters: Path, variant: str) -> None:
    """A turn without bound is cancelled. Here the session keeps the words of both sides, or forgets
    the answer; taking the whole turn back, as the reference does, is then a rewind."""
    async with engine_of(letters, variant) as bench:
        talk = await Talk.open(bench.engine)
        await talk.say(words(20), 16)
        await talk.interrupt(words(8, seed=1), after=5)
        await talk.say(words(6, seed=2), 4)
        before = len(talk.log)
        ended = await talk.interrupt(words(8, seed=3), after=5, drop=True)
        assert ended.length == before + 8
        await talk.say(words(6, seed=4), 4)

        total = len(talk.log)
        await talk.interrupt(words(8, seed=5), after=9, drop=True)
        assert await bench.engine.rewind(talk.session, total) == total
        del talk.log[total:]
        ended = await talk.say(words(5, seed=6), 4)
        assert ended.prompt_tokens == total + 5
        assert ended.cached_tokens >= total - 1
        assert await is_healthy(bench.engine, sessions=1)


async def test_first_mid_abort_recovery(letters: Path, variant: str) -> None:
    async with engine_of(letters, variant) as bench:
        talk = await Talk.open(bench.engine)
        await talk.interrupt(words(20), after=3, drop=True)
        assert await bench.engine.rewind(talk.session, 0) == 0
        talk.log.clear()
        ended = await talk.say(words(9, seed=1), 6)
        assert ended.prompt_tokens == 9
        await talk.close()
        assert await is_healthy(bench.engine, sessions=0)


async def test_preabort_recovery(letters: Path, variant: str) -> None:
    """An append with an offset is refused before it touches anything."""
    async with engine_of(letters, variant) as bench:
        talk = await Talk.open(bench.engine)
        await talk.say(words(20), 16)
        total = len(talk.log)
        with pytest.raises(BadRequest, match="offset is not allowed"):
            await bench.engine.append(talk.session, words(5), offset=1)
        ended = await talk.say(words(5, seed=1), 6)
        assert ended.prompt_tokens == total + 5
        assert ended.cached_tokens >= total - 1


@pytest.mark.parametrize(
    ("ahead", "pages", "host_pages", "retract"),
    [(0, 40, 0, False), (1, 40, 0, True), (0, 7, 0, True), (1, 7, 8, False), (0, 7, 8, True)],
)
async def test_abort_leak(
    letters: Path, ahead: int, pages: int, host_pages: int, retract: bool
) -> None:
    """Context 512, pages of 256, chunks of 4,096, 32 rows; eight rounds of normal, over-long and
    recovery turns. With seven pages the four sessions do not fit, and must still all be served."""
    async with digest_engine(
        letters,
        max_model_len=512,
        page_size=256,
        batched_tokens=4_096,
        rows=32,
        pages=pages,
        host_pages=host_pages,
        steps_ahead=ahead,
        scheduler=RetractingScheduler if retract else Scheduler,
    ) as bench:
        engine = bench.engine
        talks = [await Talk.open(engine) for _ in range(4)]
        await asyncio.gather(*(talk.say(words(16, n), 4) for n, talk in enumerate(talks)))
        for round in range(8):
            await asyncio.gather(
                *(talk.say(words(16 + round, n), 4) for n, talk in enumerate(talks)),
                *(complete(engine, words(20, round + n), 4) for n in range(2)),
            )
            await asyncio.gather(*(over_long(talk) for talk in talks))
            for n, talk in enumerate(talks):
                recovered = await talk.say(words(17, n), 4)
                assert recovered.cached_tokens > 0 or not (host_pages or pages > 7)
            assert await is_healthy(engine, sessions=4)
        await asyncio.gather(*(talk.close() for talk in talks))
        await asyncio.gather(*(complete(engine, words(9, n), 4) for n in range(3)))
        assert await is_healthy(engine, sessions=0)


async def over_long(talk: Talk) -> None:
    with pytest.raises(TooLong, match="the session holds 512") as caught:
        await talk.engine.append(talk.session, words(600))
    assert caught.value.field == "ids"
    with pytest.raises(BadRequest):
        await read(await talk.engine.complete(words(600), Sampling(max_tokens=1)))

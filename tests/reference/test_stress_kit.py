"""Tests under load: SGLang's stress and leak kits, on this engine.

SGLang's servers check their pools after every step, and the loop here runs the audit after every
step. Where SGLang asserts that the server is alive, these tests also compare every output with one
fresh prefill.

    row of SGLang                        here
    kv_cache_inheritance                 test_turn_reuses_the_kv_of_earlier_turns
    leak_logprob_concurrent              test_concurrent_turns_with_log_probabilities_leak_nothing
    test_session_logprob_leak            test_log_probabilities_equal_those_of_one_request
    stress_concurrent_sessions           test_concurrent_sessions_beside_requests_leak_nothing
    first leak test (4 by 5 by 1,500)    test_sessions_of_long_turns_beside_requests_leak_nothing
    nth_mid_abort_recovery               test_session_recovers_from_a_later_turn_cancelled_midway
    first_mid_abort_recovery             test_session_recovers_from_a_first_turn_cancelled_midway
    preabort_recovery                    test_refused_append_leaves_a_session_unchanged
    abort-leak kit                       test_refused_and_normal_turns_in_a_small_pool_leak_nothing

The variants are those of SGLang's servers, except sliding windows and log-probabilities of prompts,
which this engine lacks. (Those with EAGLE are here drafts that are right up to a random place.)
Every prefill chunk here may share its step with decodes.
"""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from continuo.engine import SessionGroup
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.core.schedule import Scheduler
from continuo.engine.errors import BadRequest, TooLong
from continuo.engine.wire.messages import Sampling, TokenLogprobs
from tests.support.drafting import oracle_speculation
from tests.support.engine_sessions import (
    CheckedSession,
    check_completion,
    collect_ids,
    is_healthy,
    prompt_ids,
)
from tests.support.engines import EngineHarness, digest_engine
from tests.support.retracting import RetractingScheduler

pytestmark = pytest.mark.slow

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
    "speculation": {
        "page_size": 1,
        "pages": 2_200,
        "batched_tokens": 512,
        "speculation": partial(oracle_speculation, random.Random(1)),
    },
    "speculation-ahead": {
        "page_size": 16,
        "pages": 700,
        "batched_tokens": 512,
        "steps_ahead": 1,
        "speculation": partial(oracle_speculation, random.Random(2)),
    },
    "speculation-retract": {
        "page_size": 4,
        "pages": 500,
        "batched_tokens": 128,
        "scheduler": RetractingScheduler,
        "speculation": partial(oracle_speculation, random.Random(3)),
    },
    "speculation-retract-large-page": {
        "page_size": 256,
        "pages": 100,
        "batched_tokens": 4_096,
        "steps_ahead": 1,
        "scheduler": RetractingScheduler,
        "speculation": partial(oracle_speculation, random.Random(4)),
    },
}


HEAVY = pytest.mark.parametrize(
    "variant",
    [
        "chunk-512-ahead",
        "retract-large-page",
        "host-tier-small-pool",
        "speculation-retract-large-page",
    ],
    indirect=True,
)
"""The variants that differ most, for long tests."""


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


def engine_for(
    letters: Path, variant: str, **overrides: Any
) -> AbstractAsyncContextManager[EngineHarness]:
    settings = {"max_model_len": 1_700, "rows": 32, **VARIANTS[variant], **overrides}
    return digest_engine(letters, **settings)


async def test_turn_reuses_the_kv_of_earlier_turns(letters: Path, variant: str) -> None:
    """A later turn reuses the KV of all earlier ids but the last, whose KV is not computed when a
    turn ends by length, and of the new ids that were prefilled before the turn was requested.
    """
    async with engine_for(letters, variant) as harness:
        session = await CheckedSession.open(harness.engine)
        for turn in range(3):
            before = len(session.token_ids)
            ended = await session.run_turn(prompt_ids(9, seed=turn), 12)
            if before:
                assert before - 1 <= ended.cached_tokens < before + 9
                assert ended.residency == "hot"
        await session.close()
        assert await is_healthy(harness.engine, sessions=0)


@HEAVY
@pytest.mark.parametrize("logprobs", [None, 0, 5])
async def test_concurrent_turns_with_log_probabilities_leak_nothing(
    letters: Path, variant: str, logprobs: int | None
) -> None:
    """The sessions run their turns at once, and are opened and closed in each round."""
    sampling = Sampling(max_tokens=8, logprobs=logprobs)
    async with engine_for(letters, variant) as harness:
        for round in range(10):
            sessions = [await CheckedSession.open(harness.engine) for _ in range(6)]
            for turn in range(5):
                await asyncio.gather(
                    *(
                        session.run_turn(prompt_ids(11, seed=n + turn + round), 8, sampling)
                        for n, session in enumerate(sessions)
                    )
                )
            await asyncio.gather(*(session.close() for session in sessions))
            assert await is_healthy(harness.engine, sessions=0)


@HEAVY
async def test_log_probabilities_equal_those_of_one_request(letters: Path, variant: str) -> None:
    """Log-probabilities with KV of earlier turns equal exactly those of one request that sends all
    ids.
    """
    sampling = Sampling(max_tokens=16, logprobs=2)

    async def run_session(engine: EngineClient, number: int) -> None:
        session, log = await engine.open(group=SessionGroup("session")), list[int]()
        for turn in range(5):
            log += prompt_ids(7 + number, seed=turn)
            await engine.append(session, log[-7 - number :])
            ids, logprobs = await scored(await engine.generate(session, sampling))
            fresh_ids, fresh_logprobs = await scored(
                await engine.complete(log, sampling, group=SessionGroup(f"{number} {turn}"))
            )
            assert (ids, logprobs) == (fresh_ids, fresh_logprobs)
            assert len(logprobs) == 16
            log += ids

    async with engine_for(letters, variant) as harness:
        await asyncio.gather(*(run_session(harness.engine, n) for n in range(4)))


async def scored(turn: Any) -> tuple[list[int], list[TokenLogprobs]]:
    pieces = [piece async for piece in turn]
    return (
        [id for piece in pieces for id in piece.ids],
        [each for piece in pieces for each in piece.logprobs or []],
    )


@HEAVY
async def test_concurrent_sessions_beside_requests_leak_nothing(
    letters: Path, variant: str
) -> None:
    """Eight sessions of six long turns, with four requests without a session beside each turn."""
    async with engine_for(letters, variant) as harness:
        engine = harness.engine
        sessions = [await CheckedSession.open(engine) for _ in range(8)]
        for turn in range(6):
            await asyncio.gather(
                *(
                    session.run_turn(prompt_ids(200 + n, seed=8 * turn + n), 16)
                    for n, session in enumerate(sessions)
                ),
                *(check_completion(engine, prompt_ids(60 + n, seed=n), 16) for n in range(4)),
            )
        await asyncio.gather(
            *(check_completion(engine, prompt_ids(30, seed=n), 16) for n in range(3))
        )
        assert await is_healthy(engine, sessions=8)
        await asyncio.gather(*(session.close() for session in sessions))
        assert await is_healthy(engine, sessions=0)


@HEAVY
async def test_sessions_of_long_turns_beside_requests_leak_nothing(
    letters: Path, variant: str
) -> None:
    """Four sessions, five turns of 370 tokens (1,500 characters), two requests beside each turn."""
    async with engine_for(letters, variant, max_model_len=2_000) as harness:
        engine = harness.engine
        sessions = [await CheckedSession.open(engine) for _ in range(4)]
        for turn in range(5):
            await asyncio.gather(
                *(
                    session.run_turn(prompt_ids(370, seed=4 * turn + n), 16)
                    for n, session in enumerate(sessions)
                ),
                *(check_completion(engine, prompt_ids(370, seed=n), 16) for n in range(2)),
            )
        await asyncio.gather(*(session.close() for session in sessions))
        assert await is_healthy(engine, sessions=0)


async def test_session_recovers_from_a_later_turn_cancelled_midway(
    letters: Path, variant: str
) -> None:
    """An unbounded turn is cancelled; the session keeps or drops its output.

    SGLang drops the whole turn, for which this engine has a rewind.
    """
    async with engine_for(letters, variant) as harness:
        session = await CheckedSession.open(harness.engine)
        await session.run_turn(prompt_ids(20), 16)
        await session.run_cancelled_turn(prompt_ids(8, seed=1), after=5)
        await session.run_turn(prompt_ids(6, seed=2), 4)
        before = len(session.token_ids)
        ended = await session.run_cancelled_turn(prompt_ids(8, seed=3), after=5, drop=True)
        assert ended.length == before + 8
        await session.run_turn(prompt_ids(6, seed=4), 4)

        total = len(session.token_ids)
        await session.run_cancelled_turn(prompt_ids(8, seed=5), after=9, drop=True)
        assert await harness.engine.rewind(session.id, total) == total
        del session.token_ids[total:]
        ended = await session.run_turn(prompt_ids(5, seed=6), 4)
        assert ended.prompt_tokens == total + 5
        assert ended.cached_tokens >= total - 1
        assert await is_healthy(harness.engine, sessions=1)


async def test_session_recovers_from_a_first_turn_cancelled_midway(
    letters: Path, variant: str
) -> None:
    async with engine_for(letters, variant) as harness:
        session = await CheckedSession.open(harness.engine)
        await session.run_cancelled_turn(prompt_ids(20), after=3, drop=True)
        assert await harness.engine.rewind(session.id, 0) == 0
        session.token_ids.clear()
        ended = await session.run_turn(prompt_ids(9, seed=1), 6)
        assert ended.prompt_tokens == 9
        await session.close()
        assert await is_healthy(harness.engine, sessions=0)


async def test_refused_append_leaves_a_session_unchanged(letters: Path, variant: str) -> None:
    """An append with an offset is refused before it changes the session."""
    async with engine_for(letters, variant) as harness:
        session = await CheckedSession.open(harness.engine)
        await session.run_turn(prompt_ids(20), 16)
        total = len(session.token_ids)
        with pytest.raises(BadRequest, match="offset is not allowed"):
            await harness.engine.append(session.id, prompt_ids(5), offset=1)
        ended = await session.run_turn(prompt_ids(5, seed=1), 6)
        assert ended.prompt_tokens == total + 5
        assert ended.cached_tokens >= total - 1


@pytest.mark.parametrize(
    ("ahead", "pages", "host_pages", "retract"),
    [(0, 40, 0, False), (1, 40, 0, True), (0, 7, 0, True), (1, 7, 8, False), (0, 7, 8, True)],
)
async def test_refused_and_normal_turns_in_a_small_pool_leak_nothing(
    letters: Path, ahead: int, pages: int, host_pages: int, retract: bool
) -> None:
    """Context 512, pages of 256, chunks of 4,096, 32 rows; eight rounds of normal, over-long and
    recovery turns. Seven pages do not hold the four sessions, and all are served nevertheless.
    """
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
    ) as harness:
        engine = harness.engine
        sessions = [await CheckedSession.open(engine) for _ in range(4)]
        await asyncio.gather(
            *(session.run_turn(prompt_ids(16, n), 4) for n, session in enumerate(sessions))
        )
        for round in range(8):
            await asyncio.gather(
                *(
                    session.run_turn(prompt_ids(16 + round, n), 4)
                    for n, session in enumerate(sessions)
                ),
                *(check_completion(engine, prompt_ids(20, round + n), 4) for n in range(2)),
            )
            await asyncio.gather(*(append_too_many_ids(session) for session in sessions))
            for n, session in enumerate(sessions):
                recovered = await session.run_turn(prompt_ids(17, n), 4)
                assert recovered.cached_tokens > 0 or not (host_pages or pages > 7)
            assert await is_healthy(engine, sessions=4)
        await asyncio.gather(*(session.close() for session in sessions))
        await asyncio.gather(*(check_completion(engine, prompt_ids(9, n), 4) for n in range(3)))
        assert await is_healthy(engine, sessions=0)


async def append_too_many_ids(session: CheckedSession) -> None:
    with pytest.raises(TooLong, match="the session holds 512") as caught:
        await session.engine.append(session.id, prompt_ids(600))
    assert caught.value.field == "ids"
    with pytest.raises(BadRequest):
        await collect_ids(await session.engine.complete(prompt_ids(600), Sampling(max_tokens=1)))

"""Tests of long sessions: SGLang's list (test_session_latency), on this engine.

row of SGLang                                 here
streaming session, 8 by 150: flat             test_steps_counted (in steps), `continuo bench
                                              flatness` (by the clock)
three modes, 4 by 300: duration, and equal    `continuo bench session-latency`
correctness, 1 by 30                          test_output_of_thirty_turns_is_equal_in_every_mode
random lengths, 8 by 50, seed 42              test_every_session_gets_its_turns_of_random_lengths
a short request beside a deep one             test_steps_counted, `continuo bench
                                              cold-beside-live`
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from continuo.engine import SessionGroup
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.wire.messages import Sampling
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engine_sessions import CheckedSession, collect_ids, is_healthy, prompt_ids
from tests.support.engines import digest_engine

pytestmark = pytest.mark.slow

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
SESSIONS, TURNS, SEED = 8, 50, 42


@AHEAD
async def test_output_of_thirty_turns_is_equal_in_every_mode(letters: Path, ahead: int) -> None:
    """16 tokens in and 8 out; each output equals that of one fresh prefill."""
    outputs: dict[str, list[list[int]]] = {"streaming": [], "regular": [], "none": []}
    async with digest_engine(letters, pages=600, max_model_len=800, steps_ahead=ahead) as harness:
        engine, sampling = harness.engine, Sampling(max_tokens=8)
        for mode, replies in outputs.items():
            session = await engine.open(streaming=mode == "streaming", group=SessionGroup(mode))
            log: list[int] = []
            for turn in range(30):
                new = prompt_ids(16, seed=turn)
                log += new
                if mode == "none":
                    stream = await engine.complete(log, sampling, group=SessionGroup(mode))
                else:
                    await engine.append(session, new)
                    stream = await engine.generate(session, sampling)
                replies.append(await collect_ids(stream))
                assert replies[-1] == oracle(log, 8)
                log += replies[-1]
            await engine.close(session)
        assert await is_healthy(engine, sessions=0)
    assert outputs["streaming"] == outputs["regular"] == outputs["none"]
    assert len(outputs["regular"]) == 30


@pytest.mark.parametrize(
    "bounds",
    [
        {"pages": 6_000, "page_size": 4, "batched_tokens": 512},
        {"pages": 60, "page_size": 256, "batched_tokens": 64, "host_pages": 40, "steps_ahead": 1},
    ],
    ids=["all fit", "half fit, a step ahead"],
)
async def test_every_session_gets_its_turns_of_random_lengths(
    letters: Path, bounds: dict[str, Any]
) -> None:
    """8 to 64 tokens in, 4 to 32 out: every turn of every session has the right output."""

    async def run_session(engine: EngineClient, number: int) -> None:
        source = random.Random(SEED + number)
        session = await CheckedSession.open(engine)
        for _ in range(TURNS):
            new = [source.randrange(VOCABULARY) for _ in range(source.randint(8, 64))]
            await session.run_turn(new, source.randint(4, 32))
        assert len(session.token_ids) > TURNS * 12
        await session.close()

    async with digest_engine(letters, max_model_len=4_000, **bounds) as harness:
        await asyncio.gather(*(run_session(harness.engine, n) for n in range(SESSIONS)))
        assert (await harness.engine.fleet.stats()).evicted_pages > 0 or "host_pages" not in bounds
        assert await is_healthy(harness.engine, sessions=0)

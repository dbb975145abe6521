"""A real engine under measurement, and functions that send it turns."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.config import EngineConfig
from continuo.engine.sampling import Sampling
from continuo.engine.wire.messages import AppendSpan, EngineStats

Prompts = list[list[list[int]]]
"""The ids to append in each turn: prompts[session][turn]."""


@contextlib.asynccontextmanager
async def run_engine(folder: Path | str, **config: Any) -> AsyncIterator[EngineClient]:
    """Run an engine in a process of its own, like `continuo serve`."""
    engine = await EngineClient.start(EngineConfig(model=str(folder), **config))
    try:
        yield engine
    finally:
        await engine.stop()


def random_prompts(
    sessions: int, turns: int, ids_in: int, vocabulary: int, seed: int = 0
) -> Prompts:
    source = random.Random(seed)
    return [
        [[source.randrange(1, vocabulary) for _ in range(ids_in)] for _ in range(turns)]
        for _ in range(sessions)
    ]


def greedy(count: int) -> Sampling:
    return Sampling(max_tokens=count, ignore_eos=True)


async def append_and_generate(
    engine: EngineClient, session: str, ids: list[int], count: int, span: AppendSpan = "firm"
) -> TurnStream:
    """Append `ids` and generate `count` ids, without waiting in between, like the gateway."""
    _, turn = await asyncio.gather(
        engine.append(session, ids, span), engine.generate(session, greedy(count))
    )
    return turn


async def read_ids(turn: TurnStream) -> list[int]:
    return [id async for piece in turn for id in piece.ids]


async def time_to_first_id(turn: TurnStream, start_s: float) -> float:
    """Read a turn to its end. Returns the seconds from `start_s` (perf_counter) to its first
    id."""
    first = 0.0
    async for piece in turn:
        if piece.ids and not first:
            first = time.perf_counter() - start_s
    return first


async def wait_until_prefilled(engine: EngineClient, sessions: Sequence[str]) -> None:
    """Wait until all ids appended to these sessions are prefilled, except the last id of each."""
    for session in sessions:
        while True:
            info = await engine.info(session)
            if info.state == "idle" and info.committed >= info.length + info.provisional - 1:
                break
            await asyncio.sleep(0.005)


def count_computed_tokens(before: EngineStats, after: EngineStats) -> int:
    """Return how many tokens the device computed between two readings of the statistics."""
    return after.tokens_computed - before.tokens_computed

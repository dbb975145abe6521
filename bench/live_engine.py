"""A real engine to measure, and the clients that load it."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from continuo.engine.client.engine_client import Engine
from continuo.engine.client.turn_stream import Turn
from continuo.engine.config import EngineConfig
from continuo.engine.wire.messages import AppendAs, EngineStats, Sampling

Prompts = list[list[list[int]]]
"""[session][turn] -> the ids to append."""


@contextlib.asynccontextmanager
async def engine(folder: Path | str, **config: Any) -> AsyncIterator[Engine]:
    """The engine in a process of its own, as `continuo serve` runs it."""
    made = await Engine.start(EngineConfig(model=str(folder), **config))
    try:
        yield made
    finally:
        await made.stop()


def prompts(sessions: int, turns: int, ids_in: int, vocabulary: int, seed: int = 0) -> Prompts:
    source = random.Random(seed)
    return [
        [[source.randrange(1, vocabulary) for _ in range(ids_in)] for _ in range(turns)]
        for _ in range(sessions)
    ]


def greedy(count: int) -> Sampling:
    return Sampling(max_tokens=count, ignore_eos=True)


async def ask(
    engine: Engine, session: str, ids: list[int], count: int, span: AppendAs = "firm"
) -> Turn:
    """Append and generate in one go, as a client does."""
    _, turn = await asyncio.gather(
        engine.append(session, ids, span), engine.generate(session, greedy(count))
    )
    return turn


async def read(turn: Turn) -> list[int]:
    return [id async for piece in turn for id in piece.ids]


async def first_id(turn: Turn, began: float) -> float:
    """Seconds from `began` until the first id arrives; the rest is read too."""
    first = 0.0
    async for piece in turn:
        if piece.ids and not first:
            first = time.perf_counter() - began
    return first


async def quiet(engine: Engine, sessions: Sequence[str]) -> None:
    """Until all that was appended is prefilled."""
    for session in sessions:
        while True:
            info = await engine.info(session)
            if info.state == "idle" and info.committed >= info.length + info.provisional - 1:
                break
            await asyncio.sleep(0.005)


def computed(before: EngineStats, after: EngineStats) -> int:
    """Tokens the device has computed in between."""
    return after.tokens_computed - before.tokens_computed

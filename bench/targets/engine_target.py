"""Sessions of this engine by `EngineClient`: no gateway, no text.

streaming    a session that owns its pages: only new ids are sent
regular      a session that can be edited: only new ids are sent, and each turn is published
no-session   the whole context is sent again each turn; its KV is found in the radix tree
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from continuo.bench.targets.target import Ids, Output, Session, Target, Turn
from continuo.engine import SessionGroup
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.config import EngineConfig
from continuo.engine.sampling import Sampling

MODES = ("streaming", "regular", "no-session")


class EngineTarget(Target):
    def __init__(
        self, name: str, mode: str, client: EngineClient, step_bytes: float | None
    ) -> None:
        self.name = name
        self.accepts_drafts = mode != "no-session"
        self._mode = mode
        self._client = client
        ready = client.ready
        self.note = f"{ready.dtype} on {ready.device}"
        # The floor is computed from the bandwidth of host memory.
        self.step_bytes = step_bytes if ready.device == "cpu" else None

    async def __aenter__(self) -> "EngineTarget":
        return self

    async def open(self, scope: str) -> Session:
        group = SessionGroup(scope)
        if self._mode == "no-session":
            return _ResendingSession(self._client, group)
        id = await self._client.open(streaming=self._mode == "streaming", group=group)
        return _OpenSession(self._client, id)


@contextlib.asynccontextmanager
async def run_engine(folder: Path, **settings: Any) -> AsyncIterator[EngineClient]:
    """Run an engine in a process of its own, like `continuo serve`. `settings`: fields of
    EngineConfig."""
    client = await EngineClient.start(EngineConfig(model=str(folder), **settings))
    try:
        yield client
    finally:
        await client.stop()


class _OpenSession(Session):
    def __init__(self, client: EngineClient, id: str) -> None:
        self._client = client
        self._id = id
        self._has_draft = False
        self._length = 0

    async def draft(self, ids: Ids) -> None:
        self._has_draft = True
        await self._client.append(self._id, ids, "provisional")

    async def turn(self, ids: Ids, output: Output) -> Turn:
        start_s = time.perf_counter()
        return await read_turn(await self._begin(ids, output), start_s)

    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        stream = await self._begin(ids, output)
        count = 0
        async for _ in _arrivals(stream):
            count += 1
            if count == received:
                await self._client.cancel(self._id, stream.id)
        assert stream.ended is not None
        ended = stream.ended
        await self._client.rewind(
            self._id, ended.length - ended.output_tokens + min(kept, ended.output_tokens)
        )

    async def close(self) -> None:
        await self._client.close(self._id, keep_prefix=False)

    async def _begin(self, ids: Ids, output: Output) -> TurnStream:
        """Append and generate without waiting in between, like the gateway."""
        span = "commit" if self._has_draft else "firm"
        self._has_draft = False
        _, stream = await asyncio.gather(
            self._client.append(self._id, ids, span),
            self._client.generate(self._id, _sampling(output)),
        )
        return stream


class _ResendingSession(Session):
    def __init__(self, client: EngineClient, group: SessionGroup) -> None:
        self._client = client
        self._group = group
        self._log: Ids = []

    async def turn(self, ids: Ids, output: Output) -> Turn:
        self._log += ids
        start_s = time.perf_counter()
        stream = await self._client.complete(self._log, _sampling(output), group=self._group)
        turn = await read_turn(stream, start_s)
        self._log += turn.output  # pyright: ignore[reportOperatorIssue]
        return turn

    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        turn = await self.turn(ids, output._replace(tokens=received))
        self._log = self._log[: len(self._log) - len(turn.output) + min(kept, received)]


def _sampling(output: Output) -> Sampling:
    return Sampling(
        max_tokens=output.tokens,
        temperature=output.temperature,
        top_p=output.top_p,
        ignore_eos=True,
    )


async def _arrivals(stream: TurnStream) -> AsyncIterator[tuple[int, float]]:
    """Yield each id of a turn and the time at which it arrived."""
    async for piece in stream:
        now_s = time.perf_counter()
        for id in piece.ids:
            yield id, now_s


async def read_turn(stream: TurnStream, start_s: float) -> Turn:
    """Read a turn that began at `start_s` to its end. Raises RuntimeError if it fails."""
    arrived = [arrival async for arrival in _arrivals(stream)]
    ended = stream.ended
    assert ended is not None
    if ended.error is not None:
        raise RuntimeError(ended.error)
    return Turn(
        start_s,
        [at_s for _, at_s in arrived],
        [id for id, _ in arrived],
        ended.prompt_tokens,
        ended.cached_tokens,
        ended.model_s,
        ended.queued_s,
    )

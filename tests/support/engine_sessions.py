"""CheckedSession: an engine session whose token log and outputs are compared with `oracle`."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.client.turn_stream import OutputChunk, TurnStream
from continuo.engine.errors import SessionDetached, SessionQuarantined
from continuo.engine.wire.messages import Sampling, TurnEnded
from tests.support.digest_runner import VOCABULARY, oracle

T = TypeVar("T")


def prompt_ids(length: int, seed: int = 0) -> list[int]:
    """Make `length` ids that differ by `seed`, so that sessions share no prefix by accident."""
    return [(seed * 31 + n * (seed % 7 + 1) + n // 5) % VOCABULARY for n in range(length)]


async def collect_ids(turn: TurnStream) -> list[int]:
    return [id async for piece in turn for id in piece.ids]


async def open_with(engine: EngineClient, ids: Sequence[int], **options: Any) -> str:
    """Open a session and append `ids`. Returns its id. `options`: those of `EngineClient.open`."""
    session = await engine.open(**options)
    await engine.append(session, ids)
    return session


async def with_recovery(
    engine: EngineClient, session: str, log: Sequence[int], command: Callable[[], Awaitable[T]]
) -> T:
    """Execute a command on a session. If the engine was lost, attach the session with its log, and
    execute the command again."""
    try:
        return await command()
    except SessionDetached:
        await engine.attach(session, log)
        return await command()


async def recovered(
    engine: EngineClient, turn: TurnStream, prompt: Sequence[int], *, fence: int = 0
) -> AsyncIterator[OutputChunk]:
    """Yield the output of a turn. Each time its engine is lost, the session is attached again."""
    while turn.ended is None:
        try:
            async for piece in turn:
                yield piece
        except SessionDetached:
            ids = [*prompt, *turn.ids]
            with contextlib.suppress(SessionQuarantined):  # the turn has ended as failed
                await engine.attach(turn.session, ids, unfinished=turn, fence=fence)


async def recover_ids(
    engine: EngineClient, turn: TurnStream, prompt: Sequence[int], *, fence: int = 0
) -> list[int]:
    pieces = recovered(engine, turn, prompt, fence=fence)
    return [id async for piece in pieces for id in piece.ids]


class CheckedSession:
    def __init__(self, engine: EngineClient, session: str) -> None:
        self.engine = engine
        self.id = session
        self.token_ids: list[int] = []

    @classmethod
    async def open(cls, engine: EngineClient, *, streaming: bool = True) -> "CheckedSession":
        return cls(engine, await engine.open(streaming=streaming))

    async def run_turn(
        self, ids: Sequence[int], count: int, sampling: Sampling | None = None
    ) -> TurnEnded:
        """Append `ids`, generate `count` ids and compare the output with the oracle."""
        await self.append(ids)
        turn = await self.engine.generate(self.id, sampling or Sampling(max_tokens=count))
        return await self.check_turn(turn, count)

    async def append(self, ids: Sequence[int]) -> None:
        """Append ids. If the engine was lost, the session is attached again."""
        length = await with_recovery(
            self.engine,
            self.id,
            self.token_ids,
            lambda: self.engine.append(self.id, ids),
        )
        self.token_ids += ids
        assert length == len(self.token_ids)

    async def check_turn(self, turn: TurnStream, count: int) -> TurnEnded:
        """Receive a whole turn and compare its `count` output ids with the oracle."""
        output = await recover_ids(self.engine, turn, self.token_ids)
        assert output == oracle(self.token_ids, count)
        assert turn.ended is not None
        assert (turn.ended.reason, turn.ended.output_tokens) == ("length", count)
        assert turn.ended.prompt_tokens == len(self.token_ids)
        self.token_ids += output
        assert turn.ended.length == len(self.token_ids)
        return turn.ended

    async def run_cancelled_turn(
        self, ids: Sequence[int], after: int, *, drop: bool = False
    ) -> TurnEnded:
        """Append `ids`, run an unbounded turn and cancel it when `after` ids have been received.

        `drop`: let the engine discard the output of the turn.
        """
        await self.append(ids)
        turn = await self.engine.generate(self.id, Sampling())
        output: list[int] = []
        async for piece in turn:
            is_early, output = len(output) < after, [*output, *piece.ids]
            if is_early and len(output) >= after:
                await self.engine.cancel(self.id, turn.id, discard_output=drop)
        assert turn.ended is not None
        assert turn.ended.reason == "cancelled"
        assert output == oracle(self.token_ids, len(output))
        self.token_ids += [] if drop else output
        return turn.ended

    async def close(self) -> None:
        await self.engine.close(self.id)


async def check_completion(engine: EngineClient, ids: Sequence[int], count: int) -> None:
    """Run one turn without a session and compare its output with the oracle."""
    turn = await engine.complete(ids, Sampling(max_tokens=count))
    assert await collect_ids(turn) == oracle(ids, count)


async def is_healthy(engine: EngineClient, *, sessions: int) -> bool:
    """Whether the free, shared and leased pages add up to all pages.

    Asserts the number of sessions and that no step or audit has failed; without sessions, also that
    no page is leased and no turn is active.
    """
    stats = await engine.fleet.stats()
    assert stats.sessions == sessions
    assert (stats.failed_steps, stats.failed_audits) == (0, 0)
    if not sessions:
        assert (stats.pages_leased, stats.host_pages_used, stats.active_turns) == (0, 0, 0)
    return stats.pages_free + stats.pages_tree + stats.pages_leased == stats.pages_total

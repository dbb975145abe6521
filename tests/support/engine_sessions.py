"""Talk: a client's side of one session, which knows the log and what each answer must be."""

from collections.abc import Sequence

from continuo.engine.client.engine_client import EngineClient, TurnStream
from continuo.engine.wire.messages import Sampling, TurnEnded
from tests.support.digest_runner import VOCABULARY, oracle


def words(length: int, seed: int = 0) -> list[int]:
    """Ids that repeat for no other seed: sessions share no prefix unless they mean to."""
    return [(seed * 31 + n * (seed % 7 + 1) + n // 5) % VOCABULARY for n in range(length)]


async def read(turn: TurnStream) -> list[int]:
    return [id async for piece in turn for id in piece.ids]


class Talk:
    def __init__(self, engine: EngineClient, session: str) -> None:
        self.engine = engine
        self.session = session
        self.log: list[int] = []

    @classmethod
    async def open(cls, engine: EngineClient, *, streaming: bool = True) -> "Talk":
        return cls(engine, await engine.open(streaming=streaming))

    async def say(
        self, ids: Sequence[int], count: int, sampling: Sampling | None = None
    ) -> TurnEnded:
        """A whole turn; its answer is what one fresh prefill of the log gives."""
        await self.append(ids)
        turn = await self.engine.generate(self.session, sampling or Sampling(max_tokens=count))
        return await self.hear(turn, count)

    async def append(self, ids: Sequence[int]) -> None:
        self.log += ids
        assert await self.engine.append(self.session, ids) == len(self.log)

    async def hear(self, turn: TurnStream, count: int) -> TurnEnded:
        said = await read(turn)
        assert said == oracle(self.log, count)
        assert turn.ended is not None
        assert (turn.ended.reason, turn.ended.output_tokens) == ("length", count)
        assert turn.ended.prompt_tokens == len(self.log)
        self.log += said
        assert turn.ended.length == len(self.log)
        return turn.ended

    async def interrupt(self, ids: Sequence[int], after: int, *, drop: bool = False) -> TurnEnded:
        """A turn without bound, cancelled when `after` ids have come."""
        await self.append(ids)
        turn = await self.engine.generate(self.session, Sampling())
        said: list[int] = []
        async for piece in turn:
            said += piece.ids
            if len(said) == after:
                await self.engine.cancel(self.session, turn.id, discard_output=drop)
        assert turn.ended is not None
        assert turn.ended.reason == "cancelled"
        assert said == oracle(self.log, len(said))
        self.log += [] if drop else said
        return turn.ended

    async def close(self) -> None:
        await self.engine.close(self.session)


async def complete(engine: EngineClient, ids: Sequence[int], count: int) -> None:
    """One turn without a session."""
    turn = await engine.complete(ids, Sampling(max_tokens=count))
    assert await read(turn) == oracle(ids, count)


async def is_healthy(engine: EngineClient, *, sessions: int) -> bool:
    """It answers, and its books balance, as they did after every step."""
    stats = await engine.stats()
    assert stats.sessions == sessions
    assert (stats.failed_steps, stats.failed_audits) == (0, 0)
    if not sessions:
        assert (stats.pages_leased, stats.host_pages_used, stats.active_turns) == (0, 0, 0)
    return stats.pages_free + stats.pages_tree + stats.pages_leased == stats.pages_total

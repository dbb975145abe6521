"""Recording: what was told of one answer, in order, for whoever follows it, from the beginning, at
their own pace. A slow reader costs nothing that is not kept anyway."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from continuo.realtime.protocol.events import AnswerEnded, AnswerStarted, Told
from continuo.realtime.protocol.response import Answer


class Recording:
    def __init__(self, told: Sequence[Told] = ()) -> None:
        self.told: list[Told] = list(told)
        self.followers = 0
        self.on_left: Callable[[], None] = _nothing
        """Called when the last follower goes before the end; not kept after that."""
        self._more = asyncio.Event()

    @property
    def answer(self) -> Answer:
        """As it began, or as it ended."""
        last = self.told[-1]
        if isinstance(last, AnswerEnded):
            return last.answer
        first = self.told[0]
        assert isinstance(first, AnswerStarted), "a recording begins with the beginning"
        return first.answer

    @property
    def ended(self) -> bool:
        return bool(self.told) and isinstance(self.told[-1], AnswerEnded)

    def tell(self, told: Told) -> None:
        assert not self.ended, "nothing follows the end"
        self.told.append(told)
        if self.ended:
            self.on_left = _nothing
        self._more.set()

    async def follow(self) -> AsyncGenerator[Told, None]:
        """All of it, to the end. Close it if you leave before (`contextlib.aclosing`)."""
        self.followers += 1
        try:
            at = 0
            while True:
                while at < len(self.told):
                    at += 1
                    yield self.told[at - 1]
                if self.ended:
                    return
                if self._more.is_set():
                    self._more = asyncio.Event()
                await self._more.wait()
        finally:
            self.followers -= 1
            if not self.followers and not self.ended:
                self.on_left()

    async def end(self) -> Answer:
        """Waits for it."""
        async for _ in self.follow():
            pass
        return self.answer


def _nothing() -> None:
    pass

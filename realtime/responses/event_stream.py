"""Recording: what was told of one answer, in order, for whoever follows it, from the beginning, at
their own pace. A slow reader costs nothing that is not kept anyway."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from continuo.realtime.protocol.events import ResponseEnded, ResponseEvent, ResponseStarted
from continuo.realtime.protocol.response import Response


class EventStream:
    def __init__(self, events: Sequence[ResponseEvent] = ()) -> None:
        self.events: list[ResponseEvent] = list(events)
        self.follower_count = 0
        self.on_abandoned: Callable[[], None] = _no_op
        """Called when the last follower goes before the end; not kept after that."""
        self._changed = asyncio.Event()

    @property
    def response(self) -> Response:
        """As it began, or as it ended."""
        last = self.events[-1]
        if isinstance(last, ResponseEnded):
            return last.answer
        first = self.events[0]
        assert isinstance(first, ResponseStarted), "a recording begins with the beginning"
        return first.answer

    @property
    def is_ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], ResponseEnded)

    def append(self, event: ResponseEvent) -> None:
        assert not self.is_ended, "nothing follows the end"
        self.events.append(event)
        if self.is_ended:
            self.on_abandoned = _no_op
        self._changed.set()

    async def follow(self) -> AsyncGenerator[ResponseEvent, None]:
        """All of it, to the end. Close it if you leave before (`contextlib.aclosing`)."""
        self.follower_count += 1
        try:
            at = 0
            while True:
                while at < len(self.events):
                    at += 1
                    yield self.events[at - 1]
                if self.is_ended:
                    return
                if self._changed.is_set():
                    self._changed = asyncio.Event()
                await self._changed.wait()
        finally:
            self.follower_count -= 1
            if not self.follower_count and not self.is_ended:
                self.on_abandoned()

    async def wait_for_end(self) -> Response:
        """Waits for it."""
        async for _ in self.follow():
            pass
        return self.response


def _no_op() -> None:
    pass

"""Event stream: the events of one response, replayable from the beginning by any reader.

Each reader reads at its own pace; a slow reader needs no buffer of its own.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from continuo.realtime.protocol.events import ResponseEnded, ResponseEvent, ResponseStarted
from continuo.realtime.protocol.response import Response


class EventStream:
    """The events of one response, from ResponseStarted to ResponseEnded."""

    def __init__(
        self,
        events: Sequence[ResponseEvent] = (),
        on_abandoned: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_abandoned`: called when the last follower stops reading before the response has
        ended."""
        self.events: list[ResponseEvent] = list(events)
        self.follower_count = 0
        self._on_abandoned = on_abandoned
        self._changed = asyncio.Event()

    @property
    def response(self) -> Response:
        """The final state of the response, or its initial state while it is being generated."""
        last = self.events[-1]
        if isinstance(last, ResponseEnded):
            return last.response
        first = self.events[0]
        assert isinstance(first, ResponseStarted), "an event stream begins with ResponseStarted"
        return first.response

    @property
    def is_ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], ResponseEnded)

    def append(self, event: ResponseEvent) -> None:
        assert not self.is_ended, "no event follows ResponseEnded"
        self.events.append(event)
        self._changed.set()

    async def follow(self) -> AsyncGenerator[ResponseEvent, None]:
        """Yield all events from the beginning until the response has ended. A caller that stops
        earlier must close the generator (`contextlib.aclosing`)."""
        self.follower_count += 1
        try:
            next_index = 0
            while True:
                while next_index < len(self.events):
                    next_index += 1
                    yield self.events[next_index - 1]
                if self.is_ended:
                    return
                if self._changed.is_set():
                    self._changed = asyncio.Event()
                await self._changed.wait()
        finally:
            self.follower_count -= 1
            if not self.follower_count and not self.is_ended:
                self._on_abandoned()

    async def wait_for_end(self) -> Response:
        """Wait until the response has ended, and return its final state."""
        async for _ in self.follow():
            pass
        return self.response

"""EventBuffer: events in order of arrival, and the wait for those that have not arrived yet."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

E = TypeVar("E")


class EventBuffer(Generic[E]):
    def __init__(self) -> None:
        self.events: list[E] = []
        self._new = asyncio.Event()

    def add(self, *events: E) -> None:
        self.events += events
        self._new.set()

    async def wait_until(self, matches: Callable[[E], bool], count: int = 1) -> E:
        """Wait until `count` events match. Returns the last of these. Raises TimeoutError after
        20 s without a new event."""
        while True:
            found = [event for event in self.events if matches(event)]
            if len(found) >= count:
                return found[count - 1]
            self._new.clear()
            await asyncio.wait_for(self._new.wait(), 20)

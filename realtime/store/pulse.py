"""Pulse: whether a server is there. One that was not is asked until it answers; as long as it lets
others wait in vain, nobody else needs to."""

import asyncio
from collections.abc import Awaitable, Callable

PULSE_S = 0.1
"""Between two questions, besides the time that each takes."""


class Pulse:
    def __init__(self, answers: Callable[[], Awaitable[bool]]) -> None:
        """`answers` asks it, within a bounded time."""
        self.late = False
        """Whether it lets who calls wait."""
        self._answers = answers
        self._asking: asyncio.Task[None] | None = None
        self._over = False

    @property
    def there(self) -> bool:
        """As far as is known."""
        return self._asking is None

    def lost(self, *, late: bool) -> None:
        """A call of it has failed; `late`: as it did not answer in time."""
        if self._over:
            return
        self.late |= late
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="pulse of the store")

    async def _ask(self) -> None:
        while not await self._answers() and not self._over:
            await asyncio.sleep(PULSE_S)
        self._asking, self.late = None, False

    async def aclose(self) -> None:
        self._over = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

"""Polling for conditions that no event or future signals."""

import asyncio
from collections.abc import Awaitable, Callable

POLL_S = 0.005


async def wait_until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Poll until `condition` returns a true value. Raises TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(POLL_S)


async def poll_until(condition: Callable[[], Awaitable[object]], timeout_s: float = 20.0) -> None:
    """Await `condition` again and again until it is true. Raises TimeoutError after
    `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(POLL_S)

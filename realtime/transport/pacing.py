"""Long work that is done a piece at a time, so that nobody waits for all of it."""

import asyncio
from collections.abc import Iterable


async def run_paced(pieces: Iterable[None]) -> None:
    """Raises what they do."""
    for _ in pieces:
        await asyncio.sleep(0)

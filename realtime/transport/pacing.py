"""Pacing: long work is done in pieces, between which the event loop runs other tasks."""

import asyncio
from collections.abc import Iterable


async def run_paced(pieces: Iterable[None]) -> None:
    """Run one piece of work in each round of the event loop. Raises what the pieces raise."""
    for _ in pieces:
        await asyncio.sleep(0)

"""Pacing: long work in pieces, between which the event loop serves others."""

import asyncio
from collections.abc import Iterable


async def run_paced(pieces: Iterable[None]) -> None:
    """Run a piece in each round of the event loop. Raises what the pieces raise."""
    for _ in pieces:
        await asyncio.sleep(0)

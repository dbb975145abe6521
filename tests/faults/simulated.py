"""F39: engines, gateways, a store and clients on virtual time, with random faults."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from tests.faults.row import Row
from tests.realtime.conftest import chat_folder
from tests.simulation.world import simulate


@contextlib.asynccontextmanager
async def model(folder: Path) -> AsyncIterator[str]:
    yield str(chat_folder(folder))


async def life(folder: str, rng: Random) -> None:
    """Run the simulation in a thread, because it runs an event loop of its own."""
    await asyncio.to_thread(simulate, rng, folder)


ROWS = (
    Row(
        id="F39",
        fault="simulated: gateways and engines killed, paused, cut off, half open; a store that is "
        "away, late, loses calls, fails over; clients that drop and repeat",
        passes="nothing acknowledged is lost or doubled, answers are those of a fresh prefill and "
        "end once, one owner, no page left over, everything closes",
        world=model,
        trial=life,
        full=10_000,
        few=2,
    ),
)

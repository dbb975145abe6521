"""F39: engines, gateways, a store and clients on virtual time, with random faults."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from tests.faults.row import FaultRow
from tests.realtime.conftest import chat_folder
from tests.simulation.world import simulate


@contextlib.asynccontextmanager
async def chat_model_folder(folder: Path) -> AsyncIterator[str]:
    yield str(chat_folder(folder))


async def simulate_in_thread(folder: str, rng: Random) -> None:
    """Run the simulation in a thread, because it runs an event loop of its own."""
    await asyncio.to_thread(simulate, rng, folder)


ROWS = (
    FaultRow(
        id="F39",
        fault="simulated: gateways and engines killed, paused, cut off, half open; a store that is "
        "unavailable, slow, loses calls, fails over; clients that disconnect and retry",
        expectation="nothing acknowledged is lost or doubled, responses are those of a fresh "
        "prefill and "
        "end once, one owner, no page leaks, everything closes",
        environment=chat_model_folder,
        trial=simulate_in_thread,
        full_trials=10_000,
        quick_trials=2,
    ),
)

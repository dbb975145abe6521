"""Twenty thousand frames, and the ones made to hurt."""

import os

import pytest

from tests.fuzz import hostile
from tests.fuzz.fuzzer import Found, Fuzzer, shrink
from tests.realtime.served import Running

FRAMES = int(os.environ.get("CONTINUO_FUZZ_FRAMES", 20_000))
SEED = int(os.environ.get("CONTINUO_FUZZ_SEED", 0))


def told(found: Found) -> str:
    shown = "\n".join(str(thrown)[:300] for thrown in found.frames[:5])
    return f"seed {found.seed}: {found.what}\n{len(found.frames)} frames:\n{shown}"


@pytest.mark.timeout(600)
async def test_spoilt_frames(server: Running) -> None:
    with Fuzzer(server.port) as fuzzer:
        seed = SEED
        while fuzzer.thrown < FRAMES:
            found = await fuzzer.round(seed)
            if found is not None:
                raise AssertionError(told(await shrink(fuzzer, found)))
            seed += 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", hostile.PLACES, ids=range(len(hostile.PLACES)))
async def test_hostile_json(server: Running, place: str) -> None:
    with Fuzzer(server.port) as fuzzer:
        for value in hostile.values():
            found = await fuzzer.events([place % value])
            assert found is None, told(found)

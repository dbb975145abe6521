"""Twenty thousand frames, and the ones made to hurt."""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tokenizers import Tokenizer

from tests.fuzz import hostile, large
from tests.fuzz.corpus_responses import BODIES, CHATS
from tests.fuzz.doors import Door
from tests.fuzz.fuzzer import STALL_S_MAX, Found, Fuzzer, shrink
from tests.fuzz.stalls import LockStalls
from tests.support.web_servers import Running

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


async def test_what_is_spoilt_was_good(server: Running) -> None:
    """Else nothing would be seen of what comes after a refusal. The model here cannot be made to
    call a tool."""
    with Fuzzer(server.port) as fuzzer:
        for door, corpus in ((fuzzer.responses, BODIES), (fuzzer.chats, CHATS)):
            for body in corpus:
                if isinstance(body.get("tool_choice"), dict):
                    continue
                found = await fuzzer.throw(door, [json.dumps(body)], seed=0)
                assert found is None, told(found)
        assert set(fuzzer.tally.codes) == {200}


class Way(NamedTuple):
    """Where a frame goes, and where in it a value stands."""

    door: Callable[[Fuzzer], Door]
    frame: str


async def hostile_values(server: Running, way: Way, values: list[str]) -> None:
    with Fuzzer(server.port) as fuzzer:
        for value in values:
            found = await fuzzer.throw(way.door(fuzzer), [way.frame % value], seed=0)
            assert found is None, told(found)


WAYS = {
    "realtime": [Way(lambda fuzzer: fuzzer.realtime, place) for place in hostile.PLACES],
    "lanes": [
        Way(lambda fuzzer: fuzzer.lanes, frame)
        for frame in (*map(hostile.lanes, hostile.LANE_PLACES), *hostile.LATER_PLACES)
    ],
    "responses": [
        Way(lambda fuzzer: fuzzer.responses, hostile.body(place)) for place in hostile.BODY_PLACES
    ],
    "chats": [
        Way(lambda fuzzer: fuzzer.chats, hostile.chat(place)) for place in hostile.CHAT_PLACES
    ],
}
ALL = [pytest.param(way, id=f"{name}{n}") for name in WAYS for n, way in enumerate(WAYS[name])]
LARGE = [
    pytest.param(WAYS[name][n], id=f"{name}{n}")
    for name, n in (("lanes", 0), ("lanes", 1), ("responses", 1), ("responses", 9), ("chats", 2))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ALL)
async def test_hostile_json(server: Running, way: Way) -> None:
    await hostile_values(server, way, hostile.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", LARGE)
async def test_large_hostile_json(server: Running, way: Way) -> None:
    await hostile_values(server, way, hostile.large())


TEXT_WAYS = [
    *(Way(lambda fuzzer: fuzzer.realtime, place) for place in large.REALTIME_PLACES),
    *(Way(lambda fuzzer: fuzzer.responses, hostile.body(place)) for place in large.BODY_PLACES),
    *(Way(lambda fuzzer: fuzzer.chats, hostile.chat(place)) for place in large.CHAT_PLACES),
]
PLACES = [pytest.param(way, id=f"{n}") for n, way in enumerate(TEXT_WAYS)]


@pytest.mark.parametrize("way", PLACES)
async def test_large_texts(server: Running, way: Way) -> None:
    await hostile_values(server, way, large.values(random.Random(way.frame), 20))


@pytest.mark.parametrize("way", PLACES)
async def test_large_texts_in_a_large_context(roomy: Running, way: Way) -> None:
    await hostile_values(roomy, way, large.values(random.Random(way.frame), 6))


def test_a_call_that_keeps_the_interpreter_lock_is_noticed(roomy_folder: Path) -> None:
    """`encode` does, and `encode_batch_fast`, which is used for long texts, does not."""
    tokenizer = Tokenizer.from_file(str(roomy_folder / "tokenizer.json"))
    text = "\U0001f600\u0301 and words " * 40_000
    with LockStalls() as stalls:
        time.sleep(0.05)
        stalls.take()
        tokenizer.encode(text)
        time.sleep(0.05)
        assert stalls.take() > 2 * STALL_S_MAX
        tokenizer.encode_batch_fast([text])
        time.sleep(0.05)
        assert stalls.take() < STALL_S_MAX

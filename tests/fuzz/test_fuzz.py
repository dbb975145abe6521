"""Fuzz tests: twenty thousand mutated frames, and hostile ones, at every endpoint."""

import json
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from tokenizers import Tokenizer

from tests.fuzz import hostile, large, stalls
from tests.fuzz.corpus_responses import BODIES, CHATS
from tests.fuzz.endpoints import Endpoint
from tests.fuzz.fuzzer import STALL_S_MAX, Fault, Fuzzer, shrink
from tests.fuzz.stalls import LockStalls
from tests.support.web_servers import RunningServer

FRAMES = int(os.environ.get("CONTINUO_FUZZ_FRAMES", 20_000))
SEED = int(os.environ.get("CONTINUO_FUZZ_SEED", 0))
STALL_S_MAX_OF_A_TEST = 4 * STALL_S_MAX
"""`make fuzz` measures on a quiet machine. Here other tests share its cores and caches."""
# A text is doubled until its encoding computes for this long, on a machine of any speed.
HELD_S_MIN = 0.3


def describe(fault: Fault) -> str:
    payloads = "\n".join(str(payload)[:300] for payload in fault.payloads[:5])
    return f"seed {fault.seed}: {fault.problem}\n{len(fault.payloads)} frames:\n{payloads}"


@pytest.mark.timeout(600)
async def test_mutated_frames_cause_no_fault(server: RunningServer) -> None:
    with Fuzzer(server.port, STALL_S_MAX_OF_A_TEST) as fuzzer:
        seed = SEED
        while fuzzer.sent < FRAMES:
            fault = await fuzzer.round(seed)
            if fault is not None:
                raise AssertionError(describe(await shrink(fuzzer, fault)))
            seed += 1


async def test_unmutated_requests_of_the_corpora_are_accepted(server: RunningServer) -> None:
    """Otherwise an early refusal would hide the code behind it. This model cannot call a tool."""
    with Fuzzer(server.port, STALL_S_MAX_OF_A_TEST) as fuzzer:
        for endpoint, corpus in ((fuzzer.responses, BODIES), (fuzzer.chats, CHATS)):
            for body in corpus:
                if isinstance(body.get("tool_choice"), dict):
                    continue
                fault = await fuzzer.send(endpoint, [json.dumps(body)], seed=0)
                assert fault is None, describe(fault)
        assert set(fuzzer.tally.codes) == {200}


class Target(NamedTuple):
    """An endpoint, and a frame with a place for a value."""

    endpoint: Callable[[Fuzzer], Endpoint]
    frame: str


async def send_values(server: RunningServer, target: Target, values: list[str]) -> None:
    with Fuzzer(server.port, STALL_S_MAX_OF_A_TEST) as fuzzer:
        for value in values:
            fault = await fuzzer.send(target.endpoint(fuzzer), [target.frame % value], seed=0)
            assert fault is None, describe(fault)


TARGETS = {
    "realtime": [Target(lambda fuzzer: fuzzer.realtime, place) for place in hostile.PLACES],
    "websocket": [
        Target(lambda fuzzer: fuzzer.responses_socket, frame)
        for frame in (
            *map(hostile.create_event, hostile.SOCKET_PLACES),
            *hostile.OTHER_EVENT_PLACES,
        )
    ],
    "responses": [
        Target(lambda fuzzer: fuzzer.responses, hostile.body(place))
        for place in hostile.BODY_PLACES
    ],
    "chats": [
        Target(lambda fuzzer: fuzzer.chats, hostile.chat(place)) for place in hostile.CHAT_PLACES
    ],
}
ALL_TARGETS = [
    pytest.param(target, id=f"{name}{n}")
    for name in TARGETS
    for n, target in enumerate(TARGETS[name])
]
LARGE_TARGETS = [
    pytest.param(TARGETS[name][n], id=f"{name}{n}")
    for name, n in (
        ("websocket", 0),
        ("websocket", 1),
        ("responses", 1),
        ("responses", 9),
        ("chats", 2),
    )
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ALL_TARGETS)
async def test_hostile_json_causes_no_fault(server: RunningServer, target: Target) -> None:
    await send_values(server, target, hostile.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", LARGE_TARGETS)
async def test_large_hostile_json_causes_no_fault(server: RunningServer, target: Target) -> None:
    await send_values(server, target, hostile.large())


TEXT_TARGETS = [
    *(Target(lambda fuzzer: fuzzer.realtime, place) for place in large.REALTIME_PLACES),
    *(Target(lambda fuzzer: fuzzer.responses, hostile.body(place)) for place in large.BODY_PLACES),
    *(Target(lambda fuzzer: fuzzer.chats, hostile.chat(place)) for place in large.CHAT_PLACES),
]
TEXT_PLACES = [pytest.param(target, id=f"{n}") for n, target in enumerate(TEXT_TARGETS)]


@pytest.mark.parametrize("target", TEXT_PLACES)
async def test_large_texts_cause_no_fault(server: RunningServer, target: Target) -> None:
    await send_values(server, target, large.values(random.Random(target.frame), 20))


@pytest.mark.parametrize("target", TEXT_PLACES)
async def test_large_texts_in_a_large_context_cause_no_fault(
    large_context_server: RunningServer, target: Target
) -> None:
    await send_values(large_context_server, target, large.values(random.Random(target.frame), 6))


def test_call_that_holds_the_interpreter_lock_is_measured(large_context_folder: Path) -> None:
    """`encode` holds it; `encode_batch_fast`, which is used for long texts, does not."""
    tokenizer = Tokenizer.from_file(str(large_context_folder / "tokenizer.json"))
    text = "\U0001f600\u0301 and words " * 40_000
    computed_s = held_s = 0.0
    while computed_s < HELD_S_MIN:
        text += text
        computed_s, held_s = _measure(partial(tokenizer.encode, text))
    assert held_s > computed_s / 2
    assert _measure(lambda: tokenizer.encode_batch_fast([text]))[1] < held_s / 2


def test_lock_that_is_held_while_times_are_read_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To read the time in the run queue gives the lock away."""

    def read_slowly(_run_queue: object) -> float:
        time.sleep(0.02)
        return 0.0

    monkeypatch.setattr(stalls._RunQueueTime, "read_s", read_slowly)
    for n in range(8):
        computed_s, held_s = _measure(lambda: sum(range(3_000_000)), pause_s=0.01 * n)
        assert held_s > computed_s / 2


def _measure(call: Callable[[], object], pause_s: float = 0.05) -> tuple[float, float]:
    """Return the CPU time of a call, and how long it held the interpreter lock, in seconds."""
    with LockStalls() as lock_stalls:
        time.sleep(pause_s)
        lock_stalls.take()
        began_s = time.thread_time()
        call()
        computed_s = time.thread_time() - began_s
    return computed_s, lock_stalls.take()

"""Tests of the quarantine: a session that kills engine processes is isolated and refused.

Processes and links are real; the null device kills its process at a deadly id.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from continuo.engine.client import engine_process, router
from continuo.engine.client.engine_client import EngineClient, UnfinishedTurn
from continuo.engine.client.quarantine import (
    EVIDENCE_WINDOW_S,
    IDS_TO_CLEAR,
    QUARANTINED_MAX,
    UNEXPLAINED_LOSSES_MAX,
    Quarantine,
)
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.errors import SessionDetached, SessionQuarantined, TurnFailed
from continuo.engine.wire.flight_recorder import (
    FlightRecorder,
    compute_recorder_bytes,
    create_memory_file,
    hash_session_id,
)
from continuo.engine.wire.messages import Predecessor, Sampling
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engine_sessions import recover_ids, with_recovery

pytestmark = pytest.mark.process

DEADLY = VOCABULARY
"""An id that no turn draws."""
AHEAD = pytest.mark.parametrize("ahead", [0, 1])
IDS = 150
PROMPTS = {f"s{n}": [n, n + 1, n + 2] for n in range(4)}
TIMEOUT_S = 60


@pytest.fixture(autouse=True)
def use_deadly_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "ENGINE_MODULE", "tests.support.deadly_boot")
    monkeypatch.setenv("DEADLY_IDS", str(DEADLY))


@contextlib.asynccontextmanager
async def child_engine(letters: Path) -> AsyncIterator[EngineClient]:
    engine = await EngineClient.start(EngineConfig(model=str(letters)))
    try:
        yield engine
    finally:
        await engine.stop()


async def start_turn(
    engine: EngineClient, session: str, prompt: list[int], count: int = IDS
) -> TurnStream:
    await engine.open(session)
    try:
        await engine.append(session, prompt)
        return await engine.generate(session, Sampling(max_tokens=count))
    except SessionDetached:
        unfinished = UnfinishedTurn("t", Sampling(max_tokens=count), 0)
        turn = await engine.attach(session, prompt, unfinished=unfinished)
        assert turn is not None
        return turn


async def read(engine: EngineClient, turn: TurnStream, prompt: list[int]) -> list[int]:
    async with asyncio.timeout(TIMEOUT_S):
        return await recover_ids(engine, turn, prompt)


async def run_turn(engine: EngineClient, session: str, prompt: list[int], count: int) -> list[int]:
    return await read(engine, await start_turn(engine, session, prompt, count), prompt)


async def run_bystanders(engine: EngineClient, count: int = IDS) -> "list[asyncio.Task[list[int]]]":
    """Start the turns of PROMPTS. Returns the tasks that read them."""
    turns = [await start_turn(engine, name, prompt, count) for name, prompt in PROMPTS.items()]
    return [
        asyncio.create_task(read(engine, turn, prompt))
        for turn, prompt in zip(turns, PROMPTS.values(), strict=True)
    ]


async def check_doomed(engine: EngineClient) -> None:
    """The session `doomed` fails in its turn, or is refused if no engine survives to accept it."""
    with pytest.raises((TurnFailed, SessionQuarantined), match="died at least 3 times"):
        await run_turn(engine, "doomed", [7, DEADLY, 8], IDS)


async def check_refused(engine: EngineClient, session: str) -> None:
    """Check that every command but close is refused before it reaches an engine."""
    for command in (
        engine.append(session, [1]),
        engine.generate(session, Sampling(max_tokens=1)),
        engine.rewind(session, 0),
        engine.fork(session),
        engine.info(session),
        engine.attach(session, [1, 2, 3]),
    ):
        with pytest.raises(SessionQuarantined, match="died at least 3 times") as caught:
            await command
        assert caught.value.code == "session_quarantined"
        assert not caught.value.is_retryable
    await engine.close(session)


def crash_count(engine: EngineClient) -> int:
    (peer,) = engine._router.connections
    return peer.link_epoch - 1


@AHEAD
@pytest.mark.parametrize("crash_mode", ["kill", "lose"])
async def test_session_whose_prompt_kills_engines_is_quarantined(
    letters: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, crash_mode: str
) -> None:
    monkeypatch.setenv("DEADLY_AHEAD", str(ahead))
    monkeypatch.setenv("DEADLY_WAY", crash_mode)
    async with child_engine(letters) as engine:
        reading = await run_bystanders(engine)
        await check_doomed(engine)
        for prompt, output in zip(PROMPTS.values(), reading, strict=True):
            assert await output == oracle(prompt, IDS)
        assert crash_count(engine) == 3
        await check_refused(engine, "doomed")
        assert await run_turn(engine, "new", [4, 5], 5) == oracle([4, 5], 5)
        assert await run_turn(engine, "doomed", [4, 5], 5) == oracle([4, 5], 5)
        assert crash_count(engine) == 3


@AHEAD
async def test_session_whose_drawn_id_kills_engines_is_quarantined(
    letters: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """The deadly id is drawn just before each crash, and may not have been received."""
    bystanders = {name: oracle(prompt, IDS) for name, prompt in PROMPTS.items()}
    count = 20
    other_ids = {id for name in PROMPTS for id in [*PROMPTS[name], *bystanders[name][:count]]}
    prompt = next(p for p in ([n, 80] for n in range(80)) if set(oracle(p, 12)[5:]) - other_ids)
    output = oracle(prompt, 12)
    at = next(n for n in range(5, 12) if output[n] not in other_ids and output[n] not in output[:n])
    monkeypatch.setenv("DEADLY_IDS", str(output[at]))
    monkeypatch.setenv("DEADLY_AHEAD", str(ahead))
    async with child_engine(letters) as engine:
        reading = await run_bystanders(engine, count)
        doomed = await start_turn(engine, "doomed", prompt)
        with pytest.raises(
            TurnFailed, match="died at least 3 times while they computed this session"
        ):
            await read(engine, doomed, prompt)
        assert at <= doomed.received <= at + 1
        for name, task in zip(PROMPTS, reading, strict=True):
            assert await task == bystanders[name][:count]
        assert crash_count(engine) == 3
        await check_refused(engine, "doomed")


async def test_session_whose_append_kills_engines_is_quarantined(letters: Path) -> None:
    """Each use of the session kills an engine."""
    async with child_engine(letters) as engine:
        reading = await run_bystanders(engine)
        await engine.open("doomed")

        async def use() -> None:
            while True:
                with contextlib.suppress(SessionDetached):
                    append = partial(engine.append, "doomed", [DEADLY])
                    await with_recovery(engine, "doomed", [DEADLY], append)
                await asyncio.sleep(0.1)

        with pytest.raises(SessionQuarantined):
            await asyncio.wait_for(use(), TIMEOUT_S)
        for prompt, output in zip(PROMPTS.values(), reading, strict=True):
            assert await output == oracle(prompt, IDS)
        assert crash_count(engine) == 3
        await check_refused(engine, "doomed")


async def test_session_whose_attached_log_kills_engines_is_quarantined(letters: Path) -> None:
    async with child_engine(letters) as engine:
        turn = await start_turn(engine, "s0", PROMPTS["s0"])
        reading = asyncio.create_task(read(engine, turn, PROMPTS["s0"]))

        async def use() -> None:
            while True:
                await engine.attach("doomed", [7, DEADLY])
                with contextlib.suppress(SessionDetached):
                    await engine.append("doomed", [1])
                await asyncio.sleep(0.1)

        with pytest.raises(SessionQuarantined):
            await asyncio.wait_for(use(), TIMEOUT_S)
        assert await reading == oracle(PROMPTS["s0"], IDS)
        assert crash_count(engine) == 3


@contextlib.asynccontextmanager
async def two_engines(letters: Path) -> AsyncIterator[tuple[EngineClient, list[EngineClient]]]:
    """Yield a client of two remote engines, and the engines."""
    async with contextlib.AsyncExitStack() as stack:
        client, servers = EngineClient(), list[EngineClient]()
        stack.push_async_callback(client.stop)
        for _ in range(2):
            sock = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            sock.set_inheritable(True)
            listening = ListenerConfig(fd=sock.fileno())
            server = await EngineClient.start(EngineConfig(model=str(letters)), listener=listening)
            stack.push_async_callback(server.stop)
            servers.append(server)
            client.fleet.add("127.0.0.1", sock.getsockname()[1])
        async with asyncio.timeout(TIMEOUT_S):
            await client.wait_until_ready()
            while len(client.fleet.loads()) < 2:
                await asyncio.sleep(0.01)
        yield client, servers


@AHEAD
@pytest.mark.parametrize("return_s", [0.0, 0.5])
async def test_deadly_session_is_quarantined_across_two_remote_engines(
    letters: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, return_s: float
) -> None:
    """Sessions move to the other engine after `return_s`, or wait until their own is restarted."""
    monkeypatch.setattr(router, "RECONNECT_GRACE_S", return_s)
    monkeypatch.setenv("DEADLY_AHEAD", str(ahead))
    async with two_engines(letters) as (client, servers):
        reading = await run_bystanders(client)
        await check_doomed(client)
        for prompt, output in zip(PROMPTS.values(), reading, strict=True):
            assert await output == oracle(prompt, IDS)
        assert sum(map(crash_count, servers)) == 3
        await check_refused(client, "doomed")
        assert await run_turn(client, "new", [4, 5], 5) == oracle([4, 5], 5)


# ---- attribution of crashes, without processes


class CrashHistory:
    """Engines that crash one after another, with the sessions `a`, `b` and `c`."""

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        self.now = 0.0
        self.crashes = 0

    def crash(self, *steps: str, at_work: str = "abc", recorded: bool = True) -> str | None:
        """Record a crash; `steps`: the sessions of each step in flight, lost if not `recorded`."""
        self.crashes += 1
        self.now += 1.0
        name = f"engine-{self.crashes}"
        self.quarantine.record_loss(name, "abc", set(at_work), self.now)
        if not recorded:
            return None
        rows = [[hash_session_id(session) for session in step] for step in steps]
        return self.quarantine.attribute_crash(Predecessor(name, rows), self.now)

    @property
    def suspects(self) -> str:
        return "".join(session for session in "abc" if self.quarantine.isolated_ids(session))


def test_rows_common_to_two_crashes_are_suspects() -> None:
    history = CrashHistory()
    history.crash("ab")
    assert history.suspects == ""
    history.crash("bc")
    assert history.suspects == "b"


def test_only_the_sole_row_of_a_third_crash_is_quarantined() -> None:
    history = CrashHistory()
    assert history.crash("a") is None
    assert history.crash("a") is None
    assert history.crash("ab") is None, "not alone"
    assert history.crash("a", "b") is None, "another step was in flight"
    assert history.quarantine.isolated_ids("a") == IDS_TO_CLEAR * 4, (
        "the isolation is longer after each crash"
    )
    assert history.crash("a", "a") == "a"
    assert "a" in history.quarantine
    assert "b" not in history.quarantine
    assert history.suspects == "b"


def test_crash_between_steps_makes_no_session_a_suspect() -> None:
    history = CrashHistory()
    for _ in range(5):
        assert history.crash() is None
    assert history.suspects == ""


def test_crashes_without_a_record_make_suspects_but_no_quarantine() -> None:
    history = CrashHistory()
    for _ in range(5):
        assert history.crash("a", at_work="ab", recorded=False) is None
    assert history.suspects == "ab"


def test_suspect_that_draws_enough_ids_is_cleared() -> None:
    history = CrashHistory()
    history.crash("ab")
    history.crash("ab")
    history.quarantine.count_drawn("a", IDS_TO_CLEAR - 1)
    assert history.suspects == "ab"
    history.quarantine.count_drawn("a", 1)
    assert history.suspects == "b"
    history.quarantine.clear("b")
    assert history.suspects == ""
    assert history.crash("a") is None
    assert history.suspects == ""


def test_crashes_outside_the_evidence_window_do_not_count() -> None:
    history = CrashHistory()
    history.crash("a")
    history.crash("a")
    history.now += EVIDENCE_WINDOW_S
    assert history.crash("a") is None
    assert history.suspects == ""


def test_lost_link_of_a_live_engine_is_no_crash() -> None:
    quarantine = Quarantine()
    for _ in range(3):
        quarantine.record_loss("engine", "a", {"a"}, 0.0)
        quarantine.record_reconnect("engine")
    assert quarantine.isolated_ids("a") == 0


def test_suspect_waits_for_the_flight_record_of_its_engine() -> None:
    quarantine = Quarantine()
    for name in ("one", "two"):
        quarantine.record_loss(name, "a", {"a"}, 0.0)
    assert quarantine.must_wait_for("a", "two")
    assert quarantine.attribute_crash(Predecessor("two", [[hash_session_id("a")]]), 0.0) is None
    assert not quarantine.must_wait_for("a", "two")


def test_quarantine_memory_is_bounded() -> None:
    quarantine = Quarantine()
    for n in range(QUARANTINED_MAX + 10):
        for incarnation in range(3):
            name = f"{n} {incarnation}"
            quarantine.record_loss(name, [f"s{n}"], {f"s{n}"}, 0.0)
            quarantine.attribute_crash(Predecessor(name, [[hash_session_id(f"s{n}")]]), 0.0)
    assert sum(f"s{n}" in quarantine for n in range(QUARANTINED_MAX + 10)) == QUARANTINED_MAX
    for n in range(UNEXPLAINED_LOSSES_MAX + 10):
        quarantine.record_loss(f"engine {n}", "a", {"a"}, 0.0)
    assert not quarantine.must_wait_for("a", "engine 9")
    assert quarantine.must_wait_for("a", "engine 10")
    quarantine.record_loss("engine", "b", {"b"}, EVIDENCE_WINDOW_S)
    assert quarantine.isolated_ids("a") == 0
    assert len(quarantine._evidence) == 1


# ---- the flight recorder


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_flight_record_is_read_by_the_next_incarnation(kind: str) -> None:
    memory = bytearray(compute_recorder_bytes(4))
    fd = create_memory_file(4)

    def recorder() -> FlightRecorder:
        return FlightRecorder(memory) if kind == "memory" else FlightRecorder.from_fd(os.dup(fd))

    a, b, c = map(hash_session_id, "abc")
    assert recorder().read_predecessor() is None
    first = recorder()
    first.begin_incarnation("one")
    assert recorder().read_predecessor() == Predecessor("one", [])
    first.begin_step(7, [a, b, c, a])
    first.end_step(7)
    first.begin_step(8, [a, b])
    assert recorder().read_predecessor() == Predecessor("one", [[a, b]])
    first.begin_step(9, [c])
    assert recorder().read_predecessor() == Predecessor("one", [[a, b], [c]])
    first.end_step(8)
    assert recorder().read_predecessor() == Predecessor("one", [[c]])
    recorder().begin_incarnation("two")
    assert recorder().read_predecessor() == Predecessor("two", [])
    os.close(fd)

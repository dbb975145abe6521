"""A session that kills engine processes is found, run alone and quarantined; the others go on.

Processes and links are real; the device is one of digests that kills its process at a deadly id."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.client import engine_process, router
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.client.quarantine import (
    EVIDENCE_WINDOW_S,
    IDS_TO_CLEAR,
    QUARANTINED_MAX,
    UNEXPLAINED_LOSSES_MAX,
    Quarantine,
)
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.errors import SessionQuarantined, TurnFailed
from continuo.engine.wire.flight_recorder import (
    FlightRecorder,
    compute_recorder_bytes,
    create_memory_file,
    hash_session_id,
)
from continuo.engine.wire.messages import Predecessor, Sampling
from tests.support.digest_runner import VOCABULARY, oracle

DEADLY = VOCABULARY
"""An id that no turn draws."""
AHEAD = pytest.mark.parametrize("ahead", [0, 1])
IDS = 150
PROMPTS = {f"s{n}": [n, n + 1, n + 2] for n in range(4)}
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "ENGINE_MODULE", "tests.support.deadly_boot")
    monkeypatch.setenv("DEADLY_IDS", str(DEADLY))


@contextlib.asynccontextmanager
async def child(letters: Path) -> AsyncIterator[EngineClient]:
    engine = await EngineClient.start(EngineConfig(model=str(letters)))
    try:
        yield engine
    finally:
        await engine.stop()


async def begin(
    engine: EngineClient, session: str, prompt: list[int], count: int = IDS
) -> TurnStream:
    await engine.open(session)
    await engine.append(session, prompt)
    return await engine.generate(session, Sampling(max_tokens=count))


async def read(turn: TurnStream) -> list[int]:
    async with asyncio.timeout(PATIENCE_S):
        return [id async for piece in turn for id in piece.ids]


async def check_doomed(engine: EngineClient) -> None:
    """Its turn fails, or is refused where no engine has lived to accept it."""
    with pytest.raises((TurnFailed, SessionQuarantined), match="died at least 3 times"):
        await read(await begin(engine, "doomed", [7, DEADLY, 8]))


async def check_refused(engine: EngineClient, session: str) -> None:
    """All commands but close are refused, and no engine receives them."""
    for asked in (
        engine.append(session, [1]),
        engine.generate(session, Sampling(max_tokens=1)),
        engine.rewind(session, 0),
        engine.fork(session),
        engine.info(session),
        engine.attach(session, [1, 2, 3]),
    ):
        with pytest.raises(SessionQuarantined, match="died at least 3 times") as caught:
            await asked
        assert caught.value.code == "session_quarantined"
        assert not caught.value.is_retryable
    await engine.close(session)


def deaths(engine: EngineClient) -> int:
    (peer,) = engine._router.connections
    return peer.link_epoch - 1


@AHEAD
@pytest.mark.parametrize("way", ["kill", "lose"])
async def test_a_deadly_prompt(
    letters: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, way: str
) -> None:
    monkeypatch.setenv("DEADLY_AHEAD", str(ahead))
    monkeypatch.setenv("DEADLY_WAY", way)
    async with child(letters) as engine:
        turns = [await begin(engine, name, prompt) for name, prompt in PROMPTS.items()]
        reading = [asyncio.create_task(read(turn)) for turn in turns]
        await check_doomed(engine)
        for prompt, said in zip(PROMPTS.values(), reading, strict=True):
            assert await said == oracle(prompt, IDS)
        assert deaths(engine) == 3
        await check_refused(engine, "doomed")
        assert await read(await begin(engine, "new", [4, 5], 5)) == oracle([4, 5], 5)
        assert await read(await begin(engine, "doomed", [4, 5], 5)) == oracle([4, 5], 5)
        assert deaths(engine) == 3


@AHEAD
async def test_a_drawn_id_that_is_deadly(
    letters: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """It is drawn just before each death, and may not have been received."""
    bystanders = {name: oracle(prompt, IDS) for name, prompt in PROMPTS.items()}
    count = 20
    spoken = {id for name in PROMPTS for id in [*PROMPTS[name], *bystanders[name][:count]]}
    prompt = next(p for p in ([n, 80] for n in range(80)) if set(oracle(p, 12)[5:]) - spoken)
    said = oracle(prompt, 12)
    at = next(n for n in range(5, 12) if said[n] not in spoken and said[n] not in said[:n])
    monkeypatch.setenv("DEADLY_IDS", str(said[at]))
    monkeypatch.setenv("DEADLY_AHEAD", str(ahead))
    async with child(letters) as engine:
        turns = [await begin(engine, name, prompt, count) for name, prompt in PROMPTS.items()]
        doomed = await begin(engine, "doomed", prompt)
        reading = [asyncio.create_task(read(turn)) for turn in turns]
        with pytest.raises(
            TurnFailed, match="died at least 3 times while they computed this session"
        ):
            await read(doomed)
        assert at <= doomed.received <= at + 1
        for name, task in zip(PROMPTS, reading, strict=True):
            assert await task == bystanders[name][:count]
        assert deaths(engine) == 3
        await check_refused(engine, "doomed")


async def test_a_deadly_append_without_a_turn(letters: Path) -> None:
    """An engine dies each time it is used."""
    async with child(letters) as engine:
        turns = [await begin(engine, name, prompt) for name, prompt in PROMPTS.items()]
        reading = [asyncio.create_task(read(turn)) for turn in turns]
        await engine.open("doomed")

        async def use() -> None:
            while True:
                await engine.append("doomed", [DEADLY])
                await asyncio.sleep(0.1)

        with pytest.raises(SessionQuarantined):
            await asyncio.wait_for(use(), PATIENCE_S)
        for prompt, said in zip(PROMPTS.values(), reading, strict=True):
            assert await said == oracle(prompt, IDS)
        assert deaths(engine) == 3
        await check_refused(engine, "doomed")


async def test_an_attached_log_that_is_deadly(letters: Path) -> None:
    async with child(letters) as engine:
        turn = await begin(engine, "s0", PROMPTS["s0"])
        reading = asyncio.create_task(read(turn))

        async def use() -> None:
            while True:
                await engine.attach("doomed", [7, DEADLY])
                await engine.append("doomed", [1])
                await asyncio.sleep(0.1)

        with pytest.raises(SessionQuarantined):
            await asyncio.wait_for(use(), PATIENCE_S)
        assert await reading == oracle(PROMPTS["s0"], IDS)
        assert deaths(engine) == 3


@contextlib.asynccontextmanager
async def two_engines(letters: Path) -> AsyncIterator[tuple[EngineClient, list[EngineClient]]]:
    """A front on two engines that run apart, and these."""
    async with contextlib.AsyncExitStack() as stack:
        front, hosts = EngineClient(), list[EngineClient]()
        stack.push_async_callback(front.stop)
        for _ in range(2):
            sock = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            sock.set_inheritable(True)
            listening = ListenerConfig(fd=sock.fileno())
            host = await EngineClient.start(EngineConfig(model=str(letters)), listener=listening)
            stack.push_async_callback(host.stop)
            hosts.append(host)
            front.add_engine("127.0.0.1", sock.getsockname()[1])
        async with asyncio.timeout(PATIENCE_S):
            await front.wait_until_ready()
            while len(front.loads()) < 2:
                await asyncio.sleep(0.01)
        yield front, hosts


@AHEAD
@pytest.mark.parametrize("return_s", [0.0, 0.5])
async def test_two_engines_that_run_apart(
    letters: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, return_s: float
) -> None:
    """Sessions go to the other engine after `return_s`, or wait until the dead one is back."""
    monkeypatch.setattr(router, "RECONNECT_GRACE_S", return_s)
    monkeypatch.setenv("DEADLY_AHEAD", str(ahead))
    async with two_engines(letters) as (front, hosts):
        turns = [await begin(front, name, prompt) for name, prompt in PROMPTS.items()]
        reading = [asyncio.create_task(read(turn)) for turn in turns]
        await check_doomed(front)
        for prompt, said in zip(PROMPTS.values(), reading, strict=True):
            assert await said == oracle(prompt, IDS)
        assert sum(map(deaths, hosts)) == 3
        await check_refused(front, "doomed")
        assert await read(await begin(front, "new", [4, 5], 5)) == oracle([4, 5], 5)


# ---- the rules, without processes


class Deaths:
    """Engines that die one after the other, and a front with sessions `a`, `b` and `c` on them."""

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        self.now = 0.0
        self.lives = 0

    def die(self, *steps: str, at_work: str = "abc", told: bool = True) -> str | None:
        """Each step is the sessions in it; not `told`: the record is lost."""
        self.lives += 1
        self.now += 1.0
        name = f"engine-{self.lives}"
        self.quarantine.record_loss(name, "abc", set(at_work), self.now)
        if not told:
            return None
        rows = [[hash_session_id(session) for session in step] for step in steps]
        return self.quarantine.attribute_crash(Predecessor(name, rows), self.now)

    @property
    def suspects(self) -> str:
        return "".join(session for session in "abc" if self.quarantine.isolated_ids(session))


def test_the_rows_of_two_last_steps_are_suspects() -> None:
    deaths = Deaths()
    deaths.die("ab")
    assert deaths.suspects == ""
    deaths.die("bc")
    assert deaths.suspects == "b"


def test_only_a_row_alone_in_a_third_death_is_quarantined() -> None:
    deaths = Deaths()
    assert deaths.die("a") is None
    assert deaths.die("a") is None
    assert deaths.die("ab") is None, "not alone"
    assert deaths.die("a", "b") is None, "another step was in flight"
    assert deaths.quarantine.isolated_ids("a") == IDS_TO_CLEAR * 4, (
        "it is searched for longer each time"
    )
    assert deaths.die("a", "a") == "a"
    assert "a" in deaths.quarantine
    assert "b" not in deaths.quarantine
    assert deaths.suspects == "b"


def test_a_death_between_steps_accuses_none() -> None:
    deaths = Deaths()
    for _ in range(5):
        assert deaths.die() is None
    assert deaths.suspects == ""


def test_without_a_record_all_with_work_are_suspects_and_none_is_quarantined() -> None:
    deaths = Deaths()
    for _ in range(5):
        assert deaths.die("a", at_work="ab", told=False) is None
    assert deaths.suspects == "ab"


def test_a_session_that_gets_through_is_cleared() -> None:
    deaths = Deaths()
    deaths.die("ab")
    deaths.die("ab")
    deaths.quarantine.count_drawn("a", IDS_TO_CLEAR - 1)
    assert deaths.suspects == "ab"
    deaths.quarantine.count_drawn("a", 1)
    assert deaths.suspects == "b"
    deaths.quarantine.clear("b")
    assert deaths.suspects == ""
    assert deaths.die("a") is None
    assert deaths.suspects == ""


def test_deaths_long_ago_are_no_evidence() -> None:
    deaths = Deaths()
    deaths.die("a")
    deaths.die("a")
    deaths.now += EVIDENCE_WINDOW_S
    assert deaths.die("a") is None
    assert deaths.suspects == ""


def test_a_link_that_was_lost_is_no_death() -> None:
    quarantine = Quarantine()
    for _ in range(3):
        quarantine.record_loss("engine", "a", {"a"}, 0.0)
        quarantine.record_reconnect("engine")
    assert quarantine.isolated_ids("a") == 0


def test_a_suspect_awaits_the_record_of_its_engine() -> None:
    quarantine = Quarantine()
    for name in ("one", "two"):
        quarantine.record_loss(name, "a", {"a"}, 0.0)
    assert quarantine.must_wait_for("a", "two")
    assert quarantine.attribute_crash(Predecessor("two", [[hash_session_id("a")]]), 0.0) is None
    assert not quarantine.must_wait_for("a", "two")


def test_what_is_remembered_is_bounded() -> None:
    quarantine = Quarantine()
    for n in range(QUARANTINED_MAX + 10):
        for life in range(3):
            name = f"{n} {life}"
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
def test_a_recorder_tells_the_next_engine(kind: str) -> None:
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

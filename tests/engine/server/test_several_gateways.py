"""Tests of several gateways and engines: sessions move by fences; no token is lost or doubled.

Links over TCP and the loop are real, on a null device: an output equals that of a fresh prefill.
"""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.client.connection import LinkSecurity
from continuo.engine.client.engine_client import EngineClient, TurnStream, UnfinishedTurn
from continuo.engine.config import EngineConfig
from continuo.engine.core.sessions import Sessions
from continuo.engine.errors import (
    EngineLost,
    LinkRefused,
    SessionDetached,
    StaleEngineFence,
    UnknownEngineSession,
)
from continuo.engine.server import clients, listener
from continuo.engine.wire.handshake import ClientHandshake, EngineHandshake
from continuo.engine.wire.messages import GetModelFiles, PauseTurn, ResumeTurn, Sampling
from tests.faults.proxy import Proxy
from tests.support.certificates import create_certificate as make_certificate
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import recover_ids
from tests.support.engines import EngineHarness, digest_engine
from tests.support.upstream_engines import upstream_engine
from tests.support.upstream_servers import FakeLlama, FakeVllm
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

PROMPT = [1, 2, 3]
SECRET = b"a secret of the right length"


@contextlib.asynccontextmanager
async def front(
    port: int, secret: bytes = b"", tls: ssl.SSLContext | None = None
) -> AsyncIterator[EngineClient]:
    engine = EngineClient()
    engine.fleet.add("127.0.0.1", port, LinkSecurity(secret, tls))
    try:
        async with asyncio.timeout(20):
            await engine.wait_until_ready()
        yield engine
    finally:
        await engine.stop()


@pytest.fixture
async def harness(request: pytest.FixtureRequest, letters: Path) -> AsyncIterator[EngineHarness]:
    """Engine on a null device, or on another server."""
    if getattr(request, "param", "device") == "device":
        async with digest_engine(letters, step_s=0.002, max_model_len=200) as harness:
            yield harness
        return
    fake = FakeVllm(context_tokens=200)
    fake.step_s = 0.002
    async with upstream_engine(letters, fake) as harness:
        yield harness


on_both = pytest.mark.parametrize("harness", ["device", "vllm"], indirect=True)


async def test_engine_that_enforces_the_least_speaks_for_all(letters: Path) -> None:
    async with (
        digest_engine(letters, max_model_len=200) as own,
        upstream_engine(letters, FakeLlama(200)) as other,
        front(await own.listen()) as engine,
    ):
        assert engine.ready.enforces_lark
        engine.fleet.add("127.0.0.1", await other.listen())
        await wait_until(lambda: not engine.ready.enforces_lark)


async def start_turn(
    engine: EngineClient, count: int, after: int, fence: int
) -> tuple[TurnStream, list[int]]:
    """Start a turn of `count` ids in session `s`, and read at least `after` of them."""
    await engine.open("s", fence=fence)
    await engine.append("s", PROMPT)
    turn = await engine.generate("s", Sampling(max_tokens=count), "t")
    output: list[int] = []
    async for piece in turn:
        output += piece.ids
        if len(output) >= after:
            break
    return turn, output


def unfinished(count: int, output_tokens: int) -> UnfinishedTurn:
    return UnfinishedTurn("t", Sampling(max_tokens=count, seed=1), output_tokens)


async def read(turn: TurnStream | None) -> list[int]:
    assert turn is not None
    return [id async for piece in turn for id in piece.ids]


@on_both
async def test_turn_continues_on_another_gateway(harness: EngineHarness) -> None:
    port = await harness.listen()
    async with front(port) as one, front(port) as two:
        turn, output = await start_turn(one, 60, 5, fence=1)
        drawn = (await two.fleet.stats()).tokens_drawn
        journalled = output[:3]
        attached = await two.attach("s", PROMPT + journalled, unfinished=unfinished(60, 3), fence=2)
        with pytest.raises(StaleEngineFence):
            await read(turn)
        assert drawn < 60, "the turn still ran at the takeover"
        assert await read(attached) == oracle(PROMPT, 60), "the whole output, without duplicates"
        assert (await two.fleet.stats()).tokens_drawn == 60, "no id was drawn twice"
        assert attached is not None
        assert attached.ended is not None
        assert attached.ended.output_tokens == 60


@on_both
async def test_superseded_gateway_can_neither_write_nor_receive(harness: EngineHarness) -> None:
    port = await harness.listen()
    async with front(port) as one, front(port) as two:
        turn, output = await start_turn(one, 100, 2, fence=5)
        waiting = asyncio.create_task(one.append("s", [9, 9, 9]))
        await asyncio.sleep(0.01)
        attached = await two.attach(
            "s", PROMPT + output, unfinished=unfinished(100, len(output)), fence=6
        )
        with pytest.raises(StaleEngineFence):
            await waiting
        received = turn.received
        with pytest.raises(StaleEngineFence):
            await read(turn)
        one.set_fence("s", 5)
        for command in (
            one.append("s", [8]),
            one.rewind("s", 0),
            one.generate("s", Sampling()),
            one.cancel("s"),
            one.close("s"),
        ):
            with pytest.raises((StaleEngineFence, UnknownEngineSession)):
                await command
        with pytest.raises(StaleEngineFence, match="fence"):
            await one.attach("s", PROMPT, fence=5)
        with pytest.raises(StaleEngineFence):
            await one.open("s", fence=5)
        assert await read(attached) == oracle(PROMPT, 100)
        assert turn.received == received, "no ids were received after the takeover"


@on_both
async def test_owner_closes_a_session_that_it_has_not_attached(harness: EngineHarness) -> None:
    port = await harness.listen()
    async with front(port) as one, front(port) as two:
        turn, _ = await start_turn(one, 150, 3, fence=5)
        for fence in (4, 5):
            await two.close("s", fence=fence)
            assert [info.session for info in await two.fleet.list_sessions()] == ["s"]
        await two.close("s", fence=6)
        assert await two.fleet.list_sessions() == []
        with pytest.raises(StaleEngineFence):
            await read(turn)
        await two.open("s", fence=6)
        await two.append("s", PROMPT)
        assert await read(await two.generate("s", Sampling(max_tokens=6))) == oracle(PROMPT, 6)
        await two.close("s", fence=6)


async def test_owner_closes_a_session_on_an_engine_that_it_cannot_reach_at_first(
    letters: Path,
) -> None:
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
        front(await two.listen()) as successor,
        front(await one.listen()) as owner,
        Proxy(await one.listen()).running() as proxy,
    ):
        await start_turn(owner, 150, 3, fence=5)
        proxy.refuses_connections = True
        successor.fleet.add("127.0.0.1", proxy.port)
        await successor.close("s", fence=6)
        proxy.refuses_connections = False
        await one.wait_until_empty()


async def test_engine_that_stalls_does_not_delay_the_search_for_a_session(letters: Path) -> None:
    async with (
        digest_engine(letters, step_s=0.002) as stalled,
        digest_engine(letters, step_s=0.002) as holding,
        Proxy(await stalled.listen()).running() as proxy,
        front(proxy.port) as engine,
    ):
        port = await holding.listen()
        async with front(port) as owner:
            await start_turn(owner, 150, 3, fence=5)
            engine.fleet.add("127.0.0.1", port)
            await wait_until(lambda: len(engine.fleet.loads()) == 2)
            proxy.stall()
            assert await engine.fleet.inspect("s", within_s=60.0) is not None
            assert len(engine.fleet.loads()) == 2, "the stalled one still counts as responsive"


@on_both
async def test_only_the_highest_of_racing_fences_attaches_the_session(
    harness: EngineHarness,
) -> None:
    port = await harness.listen()
    async with contextlib.AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(front(port)) for _ in range(6)]
        _, output = await start_turn(gateways[0], 40, 3, fence=1)
        log = PROMPT + output

        async def race(fence: int) -> list[int]:
            turn = await gateways[fence % 6].attach(
                "s", log, unfinished=unfinished(40, len(output)), fence=fence
            )
            return await read(turn)

        order = [7, 3, 11, 5, 2, 10, 4, 9]
        results = await asyncio.gather(*map(race, order), return_exceptions=True)
        whole = [result for result in results if isinstance(result, list)]
        assert whole == [oracle(PROMPT, 40)]
        assert results[order.index(11)] == whole[0], "the highest fence wins"
        assert all(isinstance(r, StaleEngineFence) for r in results if not isinstance(r, list))


@on_both
async def test_turn_that_ended_while_detached_is_sent_whole(harness: EngineHarness) -> None:
    port = await harness.listen()
    async with front(port) as two:
        async with front(port) as one:
            _, output = await start_turn(one, 30, 4, fence=1)
        async with asyncio.timeout(20):
            while (stats := await two.fleet.stats()).tokens_drawn < 30 or stats.active_turns:
                await asyncio.sleep(0.005)
        attached = await two.attach("s", PROMPT + output[:2], unfinished=unfinished(30, 2), fence=2)
        assert await read(attached) == oracle(PROMPT, 30)
        assert attached is not None
        assert attached.ended is not None
        assert (attached.ended.reason, attached.ended.length) == ("length", 33)
        assert (await two.fleet.stats()).tokens_drawn == 30
        await two.append("s", [7])
        turn = await two.generate("s", Sampling(max_tokens=3))
        assert await read(turn) == oracle([*PROMPT, *oracle(PROMPT, 30), 7], 3)


@on_both
async def test_finished_turn_cut_by_a_rewind_is_generated_again(harness: EngineHarness) -> None:
    """The gateway that takes over knows neither that the turn ended nor that it was cut."""
    port = await harness.listen()
    whole = oracle(PROMPT, 30)
    async with front(port) as one, front(port) as two:
        for fence, appended in ((1, []), (3, [7] * 40)):
            await one.open("s", fence=fence)
            await one.append("s", PROMPT)
            assert await read(await one.generate("s", Sampling(max_tokens=30), "t")) == whole
            await one.rewind("s", len(PROMPT) + 10)
            await one.append("s", appended)
            attached = await two.attach(
                "s", PROMPT + whole[:4], unfinished=unfinished(30, 4), fence=fence + 1
            )
            assert await read(attached) == whole
            await two.close("s")


@on_both
@pytest.mark.parametrize("paused", [False, True])
async def test_discarded_turn_is_generated_again_on_attach(
    harness: EngineHarness, paused: bool
) -> None:
    """The gateway that takes over knows that the turn began, not that it was discarded."""
    port = await harness.listen()
    async with front(port) as one, front(port) as two:
        turn, _ = await start_turn(one, 150, 4, fence=1)
        if paused:
            await one.pause("s")
        assert await one.cancel("s", "t", discard_output=True) == len(PROMPT)
        await read(turn)
        attached = await two.attach("s", PROMPT, unfinished=unfinished(150, 0), fence=2)
        async with asyncio.timeout(20):
            assert await read(attached) == oracle(PROMPT, 150)


async def test_lost_link_pauses_the_turn_after_a_grace_period(harness: EngineHarness) -> None:
    harness.config = EngineConfig(detach_grace_s=0.05)
    harness.kill()
    await wait_until(lambda: harness.launch_count == 2)
    port = await harness.listen()
    async with front(port) as two:
        async with front(port) as one:
            _, output = await start_turn(one, 190, 4, fence=1)
        async with asyncio.timeout(20):
            while (await two.fleet.stats()).active_turns:
                await asyncio.sleep(0.005)
        drawn = (await two.fleet.stats()).tokens_drawn
        assert drawn < 190
        assert (await two.fleet.list_sessions())[0].session == "s"
        computed = harness.runner.token_count
        attached = await two.attach(
            "s", PROMPT + output, unfinished=unfinished(190, len(output)), fence=2
        )
        assert await read(attached) == oracle(PROMPT, 190)
        assert harness.runner.token_count - computed <= 190 - drawn + 1, "its KV was kept"


async def test_detached_session_is_closed_after_its_keep_time(harness: EngineHarness) -> None:
    harness.config = EngineConfig(detach_grace_s=0.01, detach_keep_s=0.05)
    harness.kill()
    await wait_until(lambda: harness.launch_count == 2)
    port = await harness.listen()
    async with front(port) as one:
        await start_turn(one, 190, 1, fence=1)
    await harness.wait_until_empty()
    assert (await harness.engine.fleet.stats()).pages_leased == 0


async def test_turn_of_a_lost_gateway_that_nobody_can_resume_is_closed(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response of the Responses API dies with its gateway: its session has no fence. The turn of
    a stored session continues beside it."""
    monkeypatch.setattr(clients, "DISPOSABLE_GRACE_S", 0.1)
    harness.runner.step_s = 0.01
    port = await harness.listen()
    async with front(port) as two:
        async with front(port) as one:
            await start_turn(one, 190, 4, fence=1)
            await one.open("response")
            await one.append("response", PROMPT)
            await one.generate("response", Sampling(max_tokens=190), "t")
            await wait_until(lambda: harness.runner.token_count > 20)
        async with asyncio.timeout(20):
            while len(await two.fleet.list_sessions()) > 1:
                await asyncio.sleep(0)
        (kept,) = await two.fleet.list_sessions()
        assert kept.session == "s"
        stats = await two.fleet.stats()
        assert stats.active_turns == 1
        assert stats.tokens_drawn < 2 * 190, "the turn ended before its last token"
        attached = await two.attach("s", PROMPT, unfinished=unfinished(190, 0), fence=2)
        assert await read(attached) == oracle(PROMPT, 190)


@on_both
async def test_link_that_blinks_keeps_a_session_without_a_fence(harness: EngineHarness) -> None:
    port = await harness.listen()
    async with front(port) as one:
        turn, output = await start_turn(one, 150, 3, fence=0)
        reading = asyncio.create_task(recover_ids(one, turn, PROMPT, fence=0))
        harness.disconnect_clients()
        output += await reading
        assert output == turn.ids == oracle(PROMPT, 150)
        assert (await one.fleet.stats()).tokens_drawn == 150, "the turn went on"


@on_both
async def test_reconnected_link_loses_no_tokens(harness: EngineHarness) -> None:
    """The same engine still runs the turn; a command without a reply fails."""
    port = await harness.listen()
    async with front(port) as one:
        turn, output = await start_turn(one, 150, 3, fence=1)
        reading = asyncio.create_task(recover_ids(one, turn, PROMPT, fence=1))
        for _ in range(3):
            harness.disconnect_clients()
            await asyncio.sleep(0.02)
        waiting = asyncio.create_task(one.append("s", [5]))
        await asyncio.sleep(0.02)
        harness.disconnect_clients()
        output += await reading
        assert output == turn.ids == oracle(PROMPT, 150)
        with pytest.raises(SessionDetached):
            await waiting
        assert await one.append("s", [5]) == len(PROMPT) + 151
        assert (await one.fleet.stats()).tokens_drawn == 150
        next_turn = await one.generate("s", Sampling(max_tokens=4))
        assert await read(next_turn) == oracle([*PROMPT, *output, 5], 4)


async def test_attach_replaces_whatever_log_the_engine_holds(harness: EngineHarness) -> None:
    """The engine may hold no ids, more ids, fewer ids or other ids."""
    port = await harness.listen()
    log = list(range(40))
    async with front(port) as one, front(port) as two:
        for fence, known in enumerate(([], log, log[:20], [*log, 7, 7], [*log[:10], 50, 51]), 1):
            await one.open("s", fence=fence)
            await one.append("s", known)
            while (await one.info("s")).committed < len(known):
                await asyncio.sleep(0)
            computed = harness.runner.token_count
            assert await two.attach("s", log, fence=fence + 1) is None
            assert (await two.info("s")).length == 40
            turn = await two.generate("s", Sampling(max_tokens=3))
            assert await read(turn) == oracle(log, 3)
            if known == [*log, 7, 7]:
                assert harness.runner.token_count - computed <= 4, "the common prefix keeps its KV"
            await two.close("s", keep_prefix=False)


async def test_attach_continues_a_turn_unknown_to_the_engine(harness: EngineHarness) -> None:
    """The turn continues from its output so far with its seed, in the middle or at the end."""
    whole: list[int] = []
    for drawn in (0, 1, 7, 12):
        sampling = Sampling(max_tokens=12, temperature=1.0, seed=99)
        name = f"s{drawn}"
        unfinished = UnfinishedTurn("t", sampling, drawn)
        turn = await harness.engine.attach(name, PROMPT + whole[:drawn], unfinished=unfinished)
        ids = await read(turn)
        whole = whole or ids
        assert ids == whole
        assert turn is not None
        assert turn.ended is not None
        assert turn.ended.reason == "length"
        await harness.engine.close(name)
    stop = whole[5]
    end = whole.index(stop) + 1
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=99, stop_ids=(stop,))
    turn = await harness.engine.attach(
        "s", PROMPT + whole[:end], unfinished=UnfinishedTurn("t", sampling, end)
    )
    assert await read(turn) == whole[:end]
    assert turn is not None
    assert turn.ended is not None
    assert turn.ended.reason == "stop"


@on_both
async def test_paused_turn_resumes_after_an_engine_crash(harness: EngineHarness) -> None:
    turn, output = await start_turn(harness.engine, 80, 3, fence=0)
    await harness.engine.pause("s")
    assert (await harness.engine.fleet.stats()).active_turns == 0
    harness.kill()
    await wait_until(lambda: harness.launch_count == 2)
    reading = asyncio.create_task(recover_ids(harness.engine, turn, PROMPT))
    await asyncio.sleep(0.05)
    assert (await harness.engine.fleet.stats()).active_turns == 0, (
        "the turn stays paused on the new engine"
    )
    await harness.engine.resume("s")
    output += await reading
    assert output == oracle(PROMPT, 80)


@on_both
async def test_paused_turn_can_be_cancelled(harness: EngineHarness) -> None:
    turn, output = await start_turn(harness.engine, 80, 3, fence=0)
    await harness.engine.pause("s")
    length = await harness.engine.cancel("s", "t")
    output += await read(turn)
    assert turn.ended is not None
    assert turn.ended.reason == "cancelled"
    assert length == turn.ended.length == len(PROMPT) + len(output)
    await harness.engine.resume("s")
    assert (await harness.engine.fleet.stats()).active_turns == 0


@on_both
@pytest.mark.parametrize("ending", ["cancel", "drop", "close"])
async def test_paused_turn_can_be_ended_after_an_engine_crash(
    harness: EngineHarness, ending: str
) -> None:
    turn, output = await start_turn(harness.engine, 80, 3, fence=0)
    await harness.engine.pause("s")
    harness.kill()
    await wait_until(lambda: harness.launch_count == 2)
    if ending == "close":
        await harness.engine.close("s")
        with pytest.raises(SessionDetached):
            await read(turn)
    else:
        output = list(turn.ids)
        await harness.engine.attach("s", PROMPT + output, unfinished=turn)
        length = await harness.engine.cancel("s", "t", discard_output=ending == "drop")
        assert length == len(PROMPT) + (0 if ending == "drop" else turn.received)
        assert (await harness.engine.info("s")).length == length
    await recover_ids(harness.engine, turn, PROMPT)
    assert turn.ended is not None
    assert turn.ended.reason == "cancelled"
    assert turn.ids == oracle(PROMPT, turn.received)
    assert len(await harness.engine.fleet.list_sessions()) == (0 if ending == "close" else 1)


# ---- authentication ----------------------------------------------------------------------------


async def test_gateway_with_a_wrong_secret_cannot_connect(
    harness: EngineHarness, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    port = await harness.listen(file)
    async with front(port, SECRET) as one:
        await one.open("s")
        for wrong in (b"another secret of some length", b""):
            rejected = EngineClient()
            rejected.fleet.add("127.0.0.1", port, LinkSecurity(secret=wrong))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(rejected.wait_until_ready(), 0.3)
            await rejected.stop()
        assert len(await one.fleet.list_sessions()) == 1


async def test_gateway_does_not_trust_an_engine_without_the_secret(harness: EngineHarness) -> None:
    """A server that cannot prove the secret receives only the handshake."""
    received = bytearray()

    async def impersonate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((1).to_bytes(4, "little") + b"x")
        while data := await reader.read(1000):
            received.extend(data)
        writer.close()

    server = await asyncio.start_server(impersonate, "127.0.0.1", 0)
    engine = EngineClient()
    engine.fleet.add("127.0.0.1", server.sockets[0].getsockname()[1], LinkSecurity(secret=SECRET))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.wait_until_ready(), 0.3)
    await engine.stop()
    server.close()
    assert SECRET not in received
    assert received.count(b"continuo link") >= 1


async def test_strangers_cannot_hold_many_links_open(harness: EngineHarness) -> None:
    port = await harness.listen()
    async with front(port) as before:
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]

        async def is_open(reader: asyncio.StreamReader) -> bool:
            try:
                await asyncio.wait_for(reader.read(1), 0.3)
            except TimeoutError:
                return True
            except ConnectionError:
                pass
            return False

        states = await asyncio.gather(*(is_open(reader) for reader, _ in strangers))
        assert 0 < sum(states) <= listener.STRANGERS_MAX
        assert await before.fleet.list_sessions() == [], "established links are not affected"
        for _, writer in strangers:
            writer.close()
        await asyncio.sleep(0.1)
        async with front(port) as after:
            await after.open("a")


@on_both
async def test_command_numbers_of_two_gateways_do_not_mix(harness: EngineHarness) -> None:
    port = await harness.listen()
    async with front(port) as one, front(port) as two:
        await asyncio.gather(*(e.open(n) for e, n in ((one, "a"), (two, "b"))))
        lengths = await asyncio.gather(
            *(e.append(n, ids) for e, n, ids in ((one, "a", [1]), (two, "b", [1, 2, 3])))
        )
        assert lengths == [1, 3]
        with pytest.raises(UnknownEngineSession):
            await two.append("a", [1])


# ---- versions of the link ------------------------------------------------------------------


class OldEngineHandshake(EngineHandshake):
    """Handshake of an engine of link 2, which closes links of any other version."""

    def receive(self, frame: bytes) -> bytes | None:
        if b"continuo link" in frame and not frame.startswith(b"continuo link 2\n"):
            raise LinkRefused("the other end uses another version of the link protocol")
        return super().receive(frame)


@pytest.mark.parametrize("received", [1, 10])
async def test_engine_of_the_version_before_serves_and_resumes_turns(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, received: int
) -> None:
    """An engine of link 2 has no ResumeTurn: the session is attached again in its place."""
    monkeypatch.setattr(listener, "EngineHandshake", OldEngineHandshake)
    commands: list[object] = []
    apply = Sessions.apply
    monkeypatch.setattr(
        Sessions, "apply", lambda self, command: (commands.append(command), apply(self, command))[1]
    )
    async with front(await harness.listen()) as engine:
        turn, output = await start_turn(engine, 30, received, fence=5)
        await engine.pause("s")
        async with asyncio.timeout(20):
            while (await engine.info("s")).state != "idle":
                await asyncio.sleep(0.01)
        await engine.resume("s")
        detached = False
        try:
            async for piece in turn:
                output += piece.ids
        except SessionDetached:
            detached = True
        assert detached
        await engine.attach("s", [*PROMPT, *turn.ids], unfinished=turn, fence=5)
        async for piece in turn:
            output += piece.ids
    assert output == oracle(PROMPT, 30)
    assert not any(isinstance(command, ResumeTurn) for command in commands)
    assert any(isinstance(command, PauseTurn) for command in commands)


@pytest.mark.parametrize("version", [2, 3])
async def test_engine_answers_a_gateway_with_its_version(
    harness: EngineHarness, version: int
) -> None:
    handshake = ClientHandshake(b"", version)
    reader, writer = await asyncio.open_connection("127.0.0.1", await harness.listen())
    hello = handshake.start()
    assert hello is not None
    writer.write(len(hello).to_bytes(4, "little") + hello)
    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
    assert handshake.receive(answer) is not None
    assert handshake.is_complete
    writer.close()


@pytest.mark.parametrize("version", [1, 4])
async def test_engine_refuses_a_gateway_of_another_version_by_name(
    harness: EngineHarness, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    hello = ClientHandshake(b"", version).start()
    assert hello is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", await harness.listen())
    writer.write(len(hello).to_bytes(4, "little") + hello)
    assert await reader.read() == b""
    writer.close()
    words = f"the gateway offers link {version}; this engine accepts links 2 to 3"
    await wait_until(lambda: words in caplog.text)


# ---- several engines -----------------------------------------------------------------------


@pytest.mark.parametrize("begins", ["new session", "open session"])
async def test_turn_refused_by_a_draining_engine_starts_on_another(
    letters: Path, begins: str
) -> None:
    """The gateway does not know yet that the engine drains: it reports its load once a second."""
    async with (
        digest_engine(letters, max_model_len=200) as first,
        digest_engine(letters, max_model_len=200) as second,
        contextlib.AsyncExitStack() as stack,
    ):
        ports = [await harness.listen() for harness in (first, second)]
        engine = await stack.enter_async_context(front(ports[0]))
        if begins == "open session":
            await engine.open("s", fence=5)
            await engine.append("s", PROMPT)
        engine.fleet.add("127.0.0.1", ports[1], LinkSecurity())
        await wait_until(lambda: len(engine.fleet.loads()) == 2)
        operator = await stack.enter_async_context(front(ports[0]))
        await operator.fleet.drain()
        if begins == "new session":
            await engine.open("s", fence=5)
            await engine.append("s", PROMPT)
            turn = await engine.generate("s", Sampling(max_tokens=20), "t")
        else:
            with pytest.raises(SessionDetached):
                await engine.generate("s", Sampling(max_tokens=20), "t")
            turn = await engine.attach("s", PROMPT, unfinished=unfinished(20, 0), fence=5)
            assert turn is not None
        assert [id async for piece in turn for id in piece.ids] == oracle(PROMPT, 20)
        sessions = await asyncio.gather(*(h.engine.fleet.list_sessions() for h in (first, second)))
        assert [[info.session for info in each] for each in sessions] == [[], ["s"]]


async def test_sessions_of_a_lost_engine_move_to_another_engine(letters: Path) -> None:
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
    ):
        ports = [await one.listen(), await two.listen()]
        engine = EngineClient()
        for port in ports:
            engine.fleet.add("127.0.0.1", port)
        await engine.wait_until_ready()
        await wait_until(lambda: len(engine.fleet.loads()) == 2)
        names = [await engine.open() for _ in range(6)]
        assert len({engine.fleet.incarnation_of(name) for name in names}) == 2, (
            "both engines hold sessions"
        )
        for name in names:
            await engine.append(name, PROMPT)
        turns = [await engine.generate(name, Sampling(max_tokens=80)) for name in names]
        reading = [asyncio.create_task(recover_ids(engine, turn, PROMPT)) for turn in turns]
        await asyncio.sleep(0.03)
        one.launch_allowed.clear()
        one.kill()
        assert await asyncio.gather(*reading) == [oracle(PROMPT, 80)] * 6
        assert len(engine.fleet.loads()) == 1
        for name in names:
            await engine.attach(name, [*PROMPT, *oracle(PROMPT, 80)])
        await engine.append(names[0], [4])
        next_turn = await engine.generate(names[0], Sampling(max_tokens=3))
        assert await read(next_turn) == oracle([*PROMPT, *oracle(PROMPT, 80), 4], 3)
        two.launch_allowed.clear()
        two.kill()
        log = [*PROMPT, *oracle(PROMPT, 80)]
        waiting = asyncio.create_task(engine.attach(names[1], log))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        one.launch_allowed.set()
        await waiting
        assert await engine.append(names[1], [4]) == len(PROMPT) + 81
        await engine.stop()
        with pytest.raises(EngineLost):
            await engine.append(names[1], [4])
        two.launch_allowed.set()
        await wait_until(lambda: one.engine.fleet.is_available and two.engine.fleet.is_available)


async def test_new_session_is_placed_on_the_least_loaded_engine(letters: Path) -> None:
    """Load counts pages: the other engine has fewer sessions, but no free pages."""
    async with (
        digest_engine(letters) as full,
        digest_engine(letters) as other,
        front(await full.listen()) as filling,
        front(await other.listen()) as engine,
    ):
        await engine.open("first")
        expected = engine.fleet.incarnation_of("first")
        await filling.open("long")
        await filling.append("long", [n % 50 + 1 for n in range(199)])
        loaded = filling.fleet.incarnation_of("long")
        engine.fleet.add("127.0.0.1", await full.listen())
        await wait_until(
            lambda: sum(load.pages_leased > 45 for load in engine.fleet.loads().values()) == 1
        )
        names = [await engine.open() for _ in range(6)]
        assert loaded in engine.fleet.loads()
        assert {engine.fleet.incarnation_of(name) for name in names} == {expected}


async def is_only_on(harness: EngineHarness, *, not_on: EngineHarness) -> None:
    """Wait until session `s` is only on `harness`, and check that `not_on` leases no page."""
    await not_on.wait_until_empty()
    assert [info.session for info in await harness.engine.fleet.list_sessions()] == ["s"]
    assert (await not_on.engine.fleet.stats()).pages_leased == 0


async def test_stale_copy_is_closed_after_failover(letters: Path) -> None:
    """The link to the engine with the stale copy was lost when the session moved."""
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
        Proxy(await one.listen()).running() as proxy,
        front(proxy.port) as engine,
    ):
        turn, output = await start_turn(engine, 150, 3, fence=5)
        engine.fleet.add("127.0.0.1", await two.listen())
        await wait_until(lambda: len(engine.fleet.loads()) == 2)
        proxy.refuses_connections = True
        proxy.reset_connections()
        output += await recover_ids(engine, turn, PROMPT, fence=5)
        assert output == oracle(PROMPT, 150)
        for harness in (one, two):
            assert [info.session for info in await harness.engine.fleet.list_sessions()] == ["s"]
        proxy.refuses_connections = False
        await is_only_on(two, not_on=one)


async def test_stale_copy_is_closed_after_takeover_by_another_gateway(letters: Path) -> None:
    """The gateway that takes over cannot reach the engine with the stale copy at first."""
    async with (
        digest_engine(letters, step_s=0.002) as one,
        digest_engine(letters, step_s=0.002) as two,
        front(await two.listen()) as successor,
        front(await one.listen()) as owner,
        Proxy(await one.listen()).running() as proxy,
    ):
        proxy.refuses_connections = True
        successor.fleet.add("127.0.0.1", proxy.port)
        _, output = await start_turn(owner, 150, 3, fence=5)
        await owner.stop()
        log = PROMPT + output
        attached = await successor.attach(
            "s", log, unfinished=unfinished(150, len(output)), fence=6
        )
        assert await read(attached) == oracle(PROMPT, 150)
        assert [info.session for info in await one.engine.fleet.list_sessions()] == ["s"]
        proxy.refuses_connections = False
        await is_only_on(two, not_on=one)


async def test_session_is_attached_on_the_engine_that_holds_it(letters: Path) -> None:
    """The engine that holds the session is chosen even if another has more room."""
    async with digest_engine(letters, step_s=0.002) as first, digest_engine(letters) as second:
        ports = [await first.listen(), await second.listen()]
        async with front(ports[0]) as one:
            for fullness in range(3):
                await one.open(f"full{fullness}")
            _, output = await start_turn(one, 100, 3, fence=1)
            place = one.fleet.incarnation_of("s")
            two = EngineClient()
            for port in ports:
                two.fleet.add("127.0.0.1", port)
            await two.wait_until_ready()
            await wait_until(lambda: len(two.fleet.loads()) == 2)
            attached = await two.attach(
                "s", PROMPT + output, unfinished=unfinished(100, len(output)), fence=2
            )
            assert two.fleet.incarnation_of("s") == place
            assert await read(attached) == oracle(PROMPT, 100)
            await two.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the PEM files of a certificate and of its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_link_with_tls_requires_a_trusted_certificate(
    harness: EngineHarness, certificate: tuple[Path, Path]
) -> None:
    port = await harness.listen(certificate=certificate[0], key=certificate[1])
    trust = ssl.create_default_context(cafile=certificate[0])
    trust.check_hostname = False
    async with front(port, tls=trust) as one:
        turn, output = await start_turn(one, 30, 3, fence=1)
        assert output + await read(turn) == oracle(PROMPT, 30)
    unknown = ssl.create_default_context()
    unknown.check_hostname = False
    for tls in (None, unknown):
        rejected = EngineClient()
        rejected.fleet.add("127.0.0.1", port, LinkSecurity(tls=tls))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rejected.wait_until_ready(), 0.3)
        await rejected.stop()


async def test_gateway_receives_tokenizer_and_config_over_the_link(
    letters: Path, tmp_path: Path
) -> None:
    """The link carries the files of the tokenizer and of the template, not the weights."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(letters, folder)
    (folder / "model.safetensors").write_bytes(b"not sent to gateways")
    async with digest_engine(folder) as harness:
        port = await harness.listen()
        engine = EngineClient()
        engine.fleet.add("127.0.0.1", port)
        await engine.wait_until_ready()
        files = (await engine._router.request(GetModelFiles(engine._router.next_number()))).files
        assert files is not None
        assert sorted(files) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
        assert engine.text.decode([0, 1, 2]) == "abc"
        await engine.stop()

"""What is acquired is released: each operation is cancelled at each of its awaits, and leaves no
entry, count or place behind. `tests/tree/test_acquisitions.py` lists what is acquired where."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from continuo.engine import Sampling
from continuo.engine.config import ListenerConfig
from continuo.engine.server.listener import Listener
from continuo.engine.wire.handshake import ClientHandshake
from continuo.realtime.completions.token_sessions import TokenSessions, TurnPosition
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import Credentials
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester
from continuo.realtime.server.auth.open_connections import OpenConnections
from continuo.realtime.server.hardening.read_turns import ReadTurns
from tests.support.cancelling import cancel_at_each_await
from tests.support.certificates import create_certificate
from tests.support.engines import EngineHarness
from tests.support.sessions import user_message
from tests.support.waiting import wait_until
from tests.support.web_servers import RunningServer

pytestmark = [pytest.mark.process, pytest.mark.server]

TENANT = "acme"
SAMPLING = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)


@pytest.fixture
def sessions(server: RunningServer) -> TokenSessions:
    return server.app.state.token_sessions


@pytest.fixture
def check_released(
    server: RunningServer, harness: EngineHarness, sessions: TokenSessions
) -> Callable[[], Awaitable[None]]:
    """Return a check that no turn, session, slot, lock or pending command is left."""
    tenant = server.registry.tenants.of(TENANT)
    responses = server.app.state.responses
    router = harness.engine._router

    async def check() -> None:
        await wait_until(lambda: not sessions._tasks and not responses._tasks)
        await wait_until(lambda: not responses._runs)
        assert not responses._conversation_locks._held
        assert not sessions._turns.register.of_tenant(TENANT)
        await wait_until(lambda: tenant.turns.running_count + tenant.turns.waiting_count == 0)
        assert tenant.ledger.connections == 0
        await wait_until(lambda: not [*router._pending])

    return check


async def test_opening_of_a_token_session_that_is_cancelled(
    sessions: TokenSessions,
    harness: EngineHarness,
    check_released: Callable[[], Awaitable[None]],
) -> None:
    async def act() -> None:
        name = await sessions.open(TENANT, None, is_streaming=True, timeout_s=None)
        await sessions.close(TENANT, name)

    async def check() -> None:
        await check_released()
        assert not sessions._sessions
        assert not sessions._by_engine_id
        await harness.wait_until_empty()

    assert await cancel_at_each_await(act, check) >= 2


async def test_turn_of_a_token_session_that_is_cancelled(
    sessions: TokenSessions, check_released: Callable[[], Awaitable[None]]
) -> None:
    name = await sessions.open(TENANT, None, is_streaming=True, timeout_s=None)

    async def act() -> None:
        turn = await sessions.generate_in_session(
            TENANT, name, "turn", TurnPosition(), [5, 6, 7], "input_ids", SAMPLING
        )
        try:
            async with contextlib.aclosing(sessions.read(turn)) as chunks:
                async for _ in chunks:
                    pass
        finally:
            await sessions.close_turns([turn])

    assert await cancel_at_each_await(act, check_released) >= 2
    await sessions.close(TENANT, name)


async def test_turns_on_raw_prompts_that_are_cancelled(
    sessions: TokenSessions,
    harness: EngineHarness,
    check_released: Callable[[], Awaitable[None]],
) -> None:
    turns = sessions._turns

    async def act() -> None:
        begun = await turns.complete_all([[5, 6, 7], [8, 9]], SAMPLING, TENANT, "prompt")
        await turns.close_all(begun)

    async def check() -> None:
        await check_released()
        await harness.wait_until_empty()

    assert await cancel_at_each_await(act, check) >= 2


async def test_creation_of_a_response_that_is_cancelled(
    server: RunningServer, check_released: Callable[[], Awaitable[None]]
) -> None:
    responses = server.app.state.responses
    command = CreateResponse(
        settings=GenerationSettings(max_output_tokens=4),
        input=(user_message("u", "hello"),),
        store=False,
    )
    requester = Requester(TENANT, responses.open_connection())

    async def act() -> None:
        run = await responses.create(command, requester)
        async with contextlib.aclosing(run.event_stream.follow()) as events:
            async for _ in events:
                pass

    assert await cancel_at_each_await(act, check_released) >= 1
    responses.close_connection(requester.connection)
    assert not responses._connections
    assert len(responses.continuations) == 0


async def test_connection_that_is_cancelled(
    server: RunningServer, check_released: Callable[[], Awaitable[None]]
) -> None:
    connections: OpenConnections = server.app.state.open_connections

    async def act() -> None:
        async with connections.track(Credentials(TENANT), lambda _code, _reason: None):
            assert len(connections) == 1
            await asyncio.sleep(0)

    async def check() -> None:
        await check_released()
        assert len(connections) == 0

    assert await cancel_at_each_await(act, check) >= 1


async def test_reader_of_events_that_is_cancelled() -> None:
    abandoned: list[None] = []
    stream = EventStream(on_abandoned=lambda: abandoned.append(None))

    async def act() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0), contextlib.aclosing(stream.follow()) as events:
                async for _ in events:
                    pass

    async def check() -> None:
        assert stream.follower_count == 0

    assert await cancel_at_each_await(act, check) == 1
    assert len(abandoned) == 2


async def test_wait_for_a_read_turn_that_is_cancelled() -> None:
    turns = ReadTurns()

    async def check() -> None:
        assert not turns._waiting

    assert await cancel_at_each_await(lambda: turns.wait(10, TENANT), check) == 1


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
async def listener(
    request: pytest.FixtureRequest, harness: EngineHarness, tmp_path: Path
) -> AsyncIterator[tuple[Listener, ssl.SSLContext | None]]:
    """A listener that accepts nothing by itself, and the trust of its gateways."""
    files, trust = {}, None
    if request.param:
        certificate, key = create_certificate(tmp_path)
        files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
        trust = ssl.create_default_context(cafile=certificate)
    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener(
        ListenerConfig(fd=sock.dup().detach(), **files), harness.clients, harness.ready
    )
    listener._tasks[0].cancel()
    yield listener, trust
    listener.close()
    sock.close()


async def test_admission_of_a_gateway_that_is_cancelled(
    listener: tuple[Listener, ssl.SSLContext | None], harness: EngineHarness
) -> None:
    accepting, trust = listener
    before = len(harness.clients.connected)
    gateways: list[asyncio.Task[None]] = []

    async def act() -> None:
        ours, theirs = socket.socketpair()
        gateways.append(asyncio.create_task(shake_hands(theirs, trust)))
        await accepting._admit(ours, "127.0.0.1")

    async def check() -> None:
        assert len(accepting._strangers) == 0
        for client in [*harness.clients.connected]:
            if client.disconnect is not None:
                client.disconnect()
        await asyncio.gather(*gateways)  # each is disconnected
        await wait_until(lambda: len(harness.clients.connected) == before)

    assert await cancel_at_each_await(act, check) >= 2


async def shake_hands(sock: socket.socket, trust: ssl.SSLContext | None) -> None:
    """Prove the secret to an engine, and read until it closes the connection."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=trust, server_hostname="engine" if trust else None
        )
        try:
            handshake = ClientHandshake(b"")
            frame = handshake.start()
            while frame is not None:
                writer.write(len(frame).to_bytes(4, "little") + frame)
                size = int.from_bytes(await reader.readexactly(4), "little")
                answer = await reader.readexactly(size)
                frame = None if handshake.is_complete else handshake.receive(answer)
            await reader.read()
        finally:
            writer.close()

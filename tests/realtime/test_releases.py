"""Operations that are cancelled, or fail, at each of their awaits, and must leave no entry, count
or place behind. `tests/tree/test_acquisitions.py` lists what is acquired where."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from starlette.types import Message

from continuo.engine import Sampling
from continuo.engine.client.grammar_trials import _TenantTurns, _TrialProcess
from continuo.engine.config import ListenerConfig
from continuo.engine.server.listener import Listener
from continuo.engine.wire.handshake import ClientHandshake
from continuo.realtime.completions.token_sessions import TokenSessions, TurnPosition
from continuo.realtime.generation.tokenizer_threads import FairThread
from continuo.realtime.limits import Limits, TenantLimits
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import Credentials, ForkRequest
from continuo.realtime.registry.conversations import Conversations, discard, make_close
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester
from continuo.realtime.server.auth.open_connections import OpenConnections
from continuo.realtime.server.http.sse import SSEResponse
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.transport.connection import Connection
from continuo.realtime.transport.responses_connection import ResponsesConnection
from continuo.realtime.transport.stream_queues import StreamQueues
from tests.support.certificates import create_certificate
from tests.support.engines import EngineHarness
from tests.support.failing import cancel_at_each_await, fail_at_each_await
from tests.support.sessions import open_session, shared_store, user_message
from tests.support.sockets import FakeSocket
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


async def test_opening_of_a_token_session_that_fails(
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

    assert await fail_at_each_await(act, check) >= 2


async def test_turn_of_a_token_session_that_fails(
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

    assert await fail_at_each_await(act, check_released) >= 2
    await sessions.close(TENANT, name)


async def test_turns_on_raw_prompts_that_fail(
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

    assert await fail_at_each_await(act, check) >= 2


async def test_creation_of_a_response_that_fails(
    server: RunningServer, check_released: Callable[[], Awaitable[None]]
) -> None:
    responses = server.app.state.responses
    command = CreateResponse(
        settings=GenerationSettings(max_output_tokens=4),
        input=(user_message("u", "hello"),),
        store=False,
    )

    async def act() -> None:
        with responses.connected("connection"):
            run = await responses.create(command, Requester(TENANT, "connection"))
            async with contextlib.aclosing(run.event_stream.follow()) as events:
                async for _ in events:
                    pass

    async def check() -> None:
        await check_released()
        assert not responses._connections
        assert len(responses.continuations) == 0

    assert await fail_at_each_await(act, check) >= 1


async def test_response_whose_task_is_cancelled(
    server: RunningServer,
    harness: EngineHarness,
    check_released: Callable[[], Awaitable[None]],
) -> None:
    responses = server.app.state.responses
    command = CreateResponse(
        settings=GenerationSettings(max_output_tokens=2),
        input=(user_message("u", "hello"),),
        store=True,
    )
    for steps in range(1, 20):
        run = await responses.create(command, Requester(TENANT))
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in responses._tasks:
            task.cancel()
        await wait_until(run.ended.is_set)
        assert run.event_stream.is_ended
        responses.continuations.close_tenant(TENANT)
        await check_released()
        await harness.wait_until_empty()


async def test_fork_that_fails(
    server: RunningServer,
    harness: EngineHarness,
    check_released: Callable[[], Awaitable[None]],
) -> None:
    registry, credentials = server.registry, Credentials(TENANT)
    parent = await open_session(harness, registry, credentials=credentials)
    await parent.add_message("hello")
    fork = ForkRequest(parent.session.id)

    async def act() -> None:
        session = await registry.open(discard, None, credentials, make_close(), fork)
        await registry.close(session)

    async def check() -> None:
        await wait_until(lambda: registry.open_sessions.ids == [parent.session.id])
        await check_released()

    assert await fail_at_each_await(act, check) >= 2
    await registry.close(parent.session)


async def test_use_of_a_conversation_that_fails(
    server: RunningServer, check_released: Callable[[], Awaitable[None]]
) -> None:
    registry, credentials = server.registry, Credentials(TENANT)
    conversations = Conversations(registry)
    session = await registry.open(discard, "conv", credentials, close := make_close())
    await registry.park(session, close)

    async def act() -> None:
        async with conversations.use("conv", credentials) as used:
            assert registry.find_connected("conv", TENANT) is used
            await asyncio.sleep(0)

    async def check() -> None:
        await wait_until(lambda: registry.open_sessions.connected_count == 0)
        await check_released()

    assert await fail_at_each_await(act, check) >= 2
    await registry.close(session)


async def test_realtime_connection_that_fails(
    server: RunningServer, check_released: Callable[[], Awaitable[None]]
) -> None:
    registry = server.registry
    ledger = registry.tenants.of(TENANT).ledger

    async def act() -> None:
        socket = FakeSocket()
        socket.push_event(type="response.create", response={"max_output_tokens": 2})
        connection = Connection(socket, registry, Limits(), "demo", Credentials(TENANT))
        serving = asyncio.create_task(leave_after(socket, "response.done"))
        try:
            await connection.run()
        finally:
            serving.cancel()

    async def check() -> None:
        await wait_until(lambda: registry.open_sessions.connected_count == 0)
        for entry in registry.open_sessions:
            await registry.close(entry.session)
        await check_released()
        assert not any(ledger.held_bytes.values())

    assert await fail_at_each_await(act, check) >= 2


async def test_responses_connection_that_fails(
    server: RunningServer, check_released: Callable[[], Awaitable[None]]
) -> None:
    responses = server.app.state.responses
    ledger = server.registry.tenants.of(TENANT).ledger

    async def act() -> None:
        socket = FakeSocket()
        for _ in range(2):
            socket.push_event(type="response.create", input="hello", store=False)
        socket.frames.put_nowait(None)
        await ResponsesConnection(socket, responses, TENANT, lambda _: "demo").run()

    async def check() -> None:
        await check_released()
        assert not responses._connections
        assert not any(ledger.held_bytes.values())

    assert await fail_at_each_await(act, check) >= 2


async def leave_after(socket: FakeSocket, event_type: str) -> None:
    await socket.wait_for(event_type)
    socket.frames.put_nowait(None)


async def test_streamed_output_that_fails(
    server: RunningServer,
    harness: EngineHarness,
    sessions: TokenSessions,
    check_released: Callable[[], Awaitable[None]],
) -> None:
    tenants = server.registry.tenants
    tenants.of(TENANT).set_limits(TenantLimits(connections_max=1))
    tenants._store = await shared_store(harness)  # from which it learns of other gateways
    scope = {"app": server.app, "state": {"credentials": Credentials(TENANT)}}

    async def act() -> None:
        tenants._counted_s.clear()
        turn = await sessions.generate(TENANT, "turn", [5, 6, 7], "input_ids", SAMPLING)

        async def encode() -> AsyncGenerator[bytes]:
            async with contextlib.aclosing(sessions.read(turn)) as chunks:
                async for chunk in chunks:
                    yield chunk.text.encode()

        await SSEResponse(encode(), 5.0)(scope, receive_nothing, send_nothing)

    assert await fail_at_each_await(act, check_released) >= 3


async def receive_nothing() -> Message:
    await wait_forever()
    raise AssertionError


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def send_nothing(_message: Message) -> None:
    await asyncio.sleep(0)


async def test_question_to_all_engines_that_fails(harness: EngineHarness) -> None:
    router = harness.engine._router

    async def check() -> None:
        assert not [*router._pending]

    assert await fail_at_each_await(harness.engine.fleet.stats, check) == 1


async def test_queue_of_responses_whose_close_fails() -> None:
    ledger = TenantLedger(TENANT)

    async def act() -> None:
        queues = StreamQueues(Limits(), ledger)
        for _ in range(2):
            queues.put(None, wait_forever, chars=5)
        try:
            await asyncio.sleep(0)
        finally:
            await queues.close()

    async def check() -> None:
        assert not ledger.held_bytes["input"]

    assert await fail_at_each_await(act, check) == 2


async def test_wait_for_a_trial_that_fails() -> None:
    turns = _TenantTurns([process := _TrialProcess()])

    async def act() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0), turns.take(TENANT):
                await asyncio.sleep(0)

    async def check() -> None:
        assert not turns._waiting.get(TENANT)
        assert TENANT not in turns._served

    async with turns.take("umbrella"):
        assert await fail_at_each_await(act, check) == 1
    assert await fail_at_each_await(act, check) == 1
    assert turns._free == [process]


async def test_wait_for_a_thread_that_fails() -> None:
    thread, ends = FairThread("test"), threading.Event()
    running = asyncio.create_task(thread.run("umbrella", ends.wait))
    await asyncio.sleep(0)

    async def act() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await thread.run(TENANT, lambda: None)

    async def check() -> None:
        pass

    assert await cancel_at_each_await(act, check) == 1
    ends.set()
    await running
    await wait_until(lambda: not thread._is_taken)
    assert not thread._waiting


async def test_connection_that_fails(
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

    assert await fail_at_each_await(act, check) >= 1


async def test_reader_of_events_that_fails() -> None:
    abandoned: list[None] = []
    stream = EventStream(on_abandoned=lambda: abandoned.append(None))

    async def act() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0), contextlib.aclosing(stream.follow()) as events:
                async for _ in events:
                    pass

    async def check() -> None:
        assert stream.follower_count == 0

    assert await fail_at_each_await(act, check) == 1
    assert len(abandoned) == 4


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


async def test_admission_of_a_gateway_that_fails(
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

"""Budget and deadlines of unfinished messages and bodies, and release of their memory."""

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from continuo.realtime.limits import BODY_VALUES_MAX, Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.hardening import guarded_http, guarded_websocket
from continuo.realtime.server.hardening.guarded_websocket import GuardedWebSocket
from continuo.realtime.server.hardening.guards import READ_BYTES, UnreadInput
from continuo.realtime.server.hardening.read_turns import ReadTurns
from continuo.realtime.server.incoming_budget import (
    SHARE_EXTENSION,
    IncomingBudget,
    IncomingShare,
    charge_input,
    ledger_of,
    release_share,
)
from continuo.realtime.server.process.web_server import WebServer, bind
from continuo.realtime.tenants.ledger import TenantLedger
from tests.support.clients import open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.frames import (
    CLOSE,
    CONTINUATION,
    PING,
    RawWebSocket,
    encode_frame,
    upgrade_request,
)
from tests.support.waiting import wait_until
from tests.support.web_servers import API_KEY, RunningServer, serve_harness

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
SMALL = Limits(incoming_bytes_max=8 * MIB, resume_window_s=0.1, sweep_interval_s=0.05)


@pytest.fixture
async def small_server(harness: EngineHarness) -> AsyncIterator[RunningServer]:
    async with serve_harness(harness, GatewaySettings(limits=SMALL)) as server:
        yield server


def half(size: int) -> bytes:
    """Return a frame without its last byte."""
    return encode_frame(b" " * (size + 1))[:-1]


async def close_reason(peer: RawWebSocket) -> tuple[int, str]:
    """Return code and reason of the close frame."""
    while (received := await peer.receive()) is not None:
        if received.opcode == CLOSE:
            return int.from_bytes(received.payload[:2], "big"), received.payload[2:].decode()
    raise AssertionError("the connection ended without a close frame")


# ---------------------------------------------------------------- the budget


class BudgetLedger:
    """Shares of one budget, and which of them were refused."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = IncomingBudget(bytes_max)
        self.refused: list[str] = []

    def share(self, name: str) -> IncomingShare:
        return IncomingShare(self.budget, lambda: self.refused.append(name))


def test_bytes_of_a_request_are_charged_to_its_tenant_too_once_its_key_is_known() -> None:
    ledger, tenant = BudgetLedger(100), TenantLedger("acme")
    share = ledger.share("one")
    scope: dict[str, object] = {"extensions": {SHARE_EXTENSION: share}}
    share.charge(30)
    assert tenant.held_bytes["input"] == 0
    charge_input(scope, tenant)
    charge_input(scope, tenant)
    assert tenant.held_bytes["input"] == 30
    share.charge(10, 40)
    assert (tenant.held_bytes["input"], ledger.budget.charged_bytes) == (50, 50)
    release_share(scope)
    release_share(scope)
    assert (tenant.held_bytes["input"], ledger.budget.charged_bytes) == (0, 0)
    refused = IncomingShare(ledger.budget, lambda: None, ledger_of(scope))
    refused.charge(101)
    assert tenant.held_bytes["input"] == 0, "released when it was refused"


def test_largest_unfinished_share_is_refused() -> None:
    ledger = BudgetLedger(100)
    small_server, large, newcomer = (ledger.share(name) for name in ("small", "large", "newcomer"))
    small_server.charge(10)
    large.charge(60)
    newcomer.charge(30)
    assert (ledger.budget.charged_bytes, ledger.refused) == (100, [])
    newcomer.charge(31)
    assert (ledger.budget.charged_bytes, ledger.refused) == (41, ["large"])


def test_newest_share_is_refused_if_it_is_the_largest() -> None:
    ledger = BudgetLedger(100)
    small_server, large = ledger.share("small"), ledger.share("large")
    small_server.charge(20)
    large.charge(90)
    assert (ledger.budget.charged_bytes, ledger.refused) == (20, ["large"])


def test_unfinished_shares_are_refused_before_whole_messages() -> None:
    ledger = BudgetLedger(100)
    whole, unfinished = ledger.share("whole"), ledger.share("unfinished")
    whole.charge(0, 80)
    unfinished.charge(10)
    unfinished.charge(30)
    assert (ledger.budget.charged_bytes, ledger.refused) == (80, ["unfinished"])
    unfinished.charge(0, 30)
    assert ledger.refused == ["unfinished", "unfinished"], (
        "without unfinished shares the newest charge is refused"
    )


def test_second_release_of_a_share_changes_nothing() -> None:
    ledger = BudgetLedger(100)
    share = ledger.share("one")
    share.charge(40, 20)
    share.release()
    share.release()
    assert (ledger.budget.charged_bytes, ledger.refused) == (0, [])


# ---------------------------------------------------------------- unfinished messages


async def test_unfinished_messages_stay_within_the_budget(small_server: RunningServer) -> None:
    """A client with a small message is answered while the budget is full."""
    incoming, most = small_server.web_server.incoming_budget, 0
    others: list[RawWebSocket] = []
    for number in range(12):
        peer = await RawWebSocket.connect(small_server.port)
        await peer.receive_event()
        await peer.send(half(MIB))
        others.append(peer)
        if number < 7:
            await wait_until(lambda: incoming.charged_bytes >= len(others) * MIB)
        async with open_realtime_session(small_server.url) as honest:
            await honest.send("input_audio_buffer.clear", pad="x" * 4096)
            await honest.expect("input_audio_buffer.cleared")
        most = max(most, incoming.charged_bytes)
    await wait_until(lambda: incoming.refused_count >= 12 - 8)
    assert 7 * MIB <= most <= incoming.bytes_max
    for peer in others:
        peer.close()
    await wait_until(lambda: incoming.charged_bytes == 0)


async def test_input_that_waits_is_refused_before_a_small_request(
    small_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input that waits for a turn may be a part of a message, however much of it is complete."""
    budget, submit = small_server.web_server.incoming_budget, ReadTurns.submit

    def withhold(turns: ReadTurns, reader: UnreadInput, seconds: float) -> None:
        if not isinstance(reader, GuardedWebSocket):
            submit(turns, reader, seconds)

    flood = await RawWebSocket.connect(small_server.port)
    await flood.receive_event()
    monkeypatch.setattr(ReadTurns, "submit", withhold)
    flood.writer.write(encode_frame(b"", PING) * 10_000)
    await wait_until(lambda: budget.charged_bytes == READ_BYTES)
    monkeypatch.setattr(budget, "bytes_max", READ_BYTES + 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", small_server.port)
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\nX-Part: ")
    await wait_until(lambda: budget.refused_count == 1)
    writer.write(b"x\r\n\r\n")
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 404 ")
    writer.close()
    flood.reset()


async def test_connection_refused_by_the_budget_gets_1013_and_a_reason(
    small_server: RunningServer,
) -> None:
    large, *rest = [await RawWebSocket.connect(small_server.port) for _ in range(8)]
    await large.send(half(2 * MIB - 64))
    for peer in rest:
        await peer.send(half(MIB))
    code, reason = await close_reason(large)
    assert (code, reason) == (1013, "the server holds 8,388,608 bytes of unfinished messages")
    for peer in (large, *rest):
        peer.close()


async def test_message_is_charged_until_the_next_one_is_received(harness: EngineHarness) -> None:
    """Handling of a message ends when the application receives the next one."""
    received, may_continue = asyncio.Event(), asyncio.Event()

    async def slow(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.receive()
        received.set()
        await may_continue.wait()
        await websocket.receive()

    async with running_app(slow) as (web_server, port):
        peer = await RawWebSocket.connect(port)
        await peer.send(encode_frame(b" " * MIB))
        await asyncio.wait_for(received.wait(), 20)
        assert web_server.incoming_budget.charged_bytes == MIB
        may_continue.set()
        await wait_until(lambda: web_server.incoming_budget.charged_bytes == 0)
        peer.close()


async def test_frames_before_the_upgrade_is_accepted_end_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The frames are not charged, because the peer is not authenticated yet."""

    async def never_accept(websocket: WebSocket) -> None:
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass

    async with running_app(never_accept) as (web_server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(upgrade_request())
        await wait_until(lambda: bool(web_server.server_state.connections))
        await asyncio.sleep(0.1)
        writer.write(encode_frame(b"\xff\xfe") + half(MIB))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        assert web_server.incoming_budget.charged_bytes == 0
    assert not [record for record in caplog.records if record.exc_info]


@contextlib.asynccontextmanager
async def running_app(
    endpoint: Callable[[WebSocket], Awaitable[None]],
) -> AsyncIterator[tuple[WebServer, int]]:
    """Run the web server with an application of one WebSocket endpoint."""
    listening = asyncio.Event()
    with bind("127.0.0.1", 0) as sock:
        app = Starlette(routes=[WebSocketRoute("/v1/realtime", endpoint)])
        web_server = WebServer(app, GatewaySettings(limits=SMALL), listening.set)
        serving = asyncio.create_task(web_server.serve([sock]))
        await listening.wait()
        yield web_server, sock.getsockname()[1]
        web_server.should_exit = True
        await asyncio.wait_for(serving, 20)


async def test_unfinished_heads_are_charged(small_server: RunningServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", small_server.port)
            stack.callback(writer.close)
            writer.write(b"GET /health HTTP/1.1\r\nX: " + b"x" * 30_000)
        await wait_until(lambda: small_server.web_server.incoming_budget.charged_bytes > 4 * 30_000)
    await wait_until(lambda: small_server.web_server.incoming_budget.charged_bytes == 0)


# ---------------------------------------------------------------- bodies


def post(size: int) -> bytes:
    return (
        f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
        f"Authorization: Bearer {API_KEY}\r\n\r\n"
    ).encode()


async def test_largest_body_is_refused_and_another_is_answered(small_server: RunningServer) -> None:
    async def begin_body(size: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", small_server.port)
        writer.write(post(6 * MIB) + b" " * size)
        await writer.drain()
        return reader, writer

    large, other = await begin_body(5 * MIB), await begin_body(0)
    await wait_until(lambda: small_server.web_server.incoming_budget.charged_bytes >= 5 * MIB)
    other[1].write(b" " * 4 * MIB)
    head, _, body = (await asyncio.wait_for(large[0].read(), 20)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2" in head
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("server_busy", "server_error")
    assert "8,388,608 bytes" in error["message"]
    other[1].write(b" " * 2 * MIB)
    assert b" 400 " in await asyncio.wait_for(other[0].readline(), 20), "spaces are no JSON"
    await wait_until(lambda: small_server.web_server.incoming_budget.charged_bytes == 0)
    for _, writer in (large, other):
        writer.close()


async def test_body_declared_over_the_limit_is_refused_unread(server: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(16 * MIB + 1))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert head.startswith(b"HTTP/1.1 413 ")
    assert server.web_server.incoming_budget.charged_bytes == 0, "a declared length is not charged"
    writer.close()


async def test_body_of_too_many_values_is_refused_before_the_rest_arrives(
    server: RunningServer,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(16 * MIB) + b'{"input": [' + b"{}," * BODY_VALUES_MAX)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    assert head.startswith(b"HTTP/1.1 400 ")
    await asyncio.wait_for(reader.readuntil(b'"frame_too_large"'), 20)
    await wait_until(lambda: server.web_server.incoming_budget.charged_bytes == 0)
    writer.close()


async def test_slowly_arriving_body_is_dropped_after_a_timeout(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "BODY_TIMEOUT_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(1000))

    async def send_slowly() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.02)

    sending = asyncio.create_task(send_slowly())
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 15) == b""
    sending.cancel()
    writer.close()


# ---------------------------------------------------------------- deadlines of messages


@pytest.mark.parametrize(
    "start",
    [half(1000), encode_frame(b" " * 1000, fin=False), encode_frame(b"", fin=False)],
    ids=["a frame", "fragments", "an empty fragment"],
)
async def test_pings_do_not_extend_the_deadline_of_a_message(
    small_server: RunningServer, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(guarded_websocket, "MESSAGE_TIMEOUT_S", 0.3)
    peer = await RawWebSocket.connect(small_server.port)
    await peer.receive_event()
    await peer.send(start)

    async def ping() -> None:
        while start[0] & 0x80 == 0:  # a control frame cannot interrupt a frame
            await peer.send(encode_frame(b"", PING))
            await asyncio.sleep(0.02)

    pinging = asyncio.create_task(ping())
    assert await close_reason(peer) == (1008, "a message took over 0.3 s to arrive")
    pinging.cancel()
    peer.close()


async def test_each_message_has_a_deadline_of_its_own(
    small_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline begins anew with each message, without a pause between messages."""
    monkeypatch.setattr(guarded_websocket, "MESSAGE_TIMEOUT_S", 2.0)
    peer = await RawWebSocket.connect(small_server.port)
    await peer.receive_event()
    clear = encode_frame('{"type": "input_audio_buffer.clear"}')
    await peer.send(clear[:5])
    for _ in range(30):
        await asyncio.sleep(0.1)
        await peer.send(clear[5:] + clear[:5])
        assert (await peer.receive_event())["type"] == "input_audio_buffer.cleared"
    peer.close()


async def test_deadline_excludes_time_in_which_the_server_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_websocket, "MESSAGE_TIMEOUT_S", 1.0)
    received: list[object] = []

    async def slow(websocket: WebSocket) -> None:
        await websocket.accept()
        await asyncio.sleep(2)
        for _ in range(2):
            received.append((await websocket.receive()).get("text"))

    async with running_app(slow) as (_, port):
        peer = await RawWebSocket.connect(port)
        late = encode_frame("late")
        await peer.send(encode_frame("soon") + late[:5])
        await asyncio.sleep(1.5)
        await peer.send(late[5:])
        await wait_until(lambda: received == ["soon", "late"])
        peer.close()


# ---------------------------------------------------------------- fragments


async def test_number_of_empty_fragments_is_bounded(small_server: RunningServer) -> None:
    peer = await RawWebSocket.connect(small_server.port)
    await peer.receive_event()
    fragments = encode_frame(b"", CONTINUATION, fin=False) * 5000
    await peer.send(encode_frame(b"", fin=False), *[fragments] * 20)
    code, reason = await close_reason(peer)
    assert code == 1008
    assert reason == "a message of over 1,024 small fragments"
    peer.close()


@pytest.mark.parametrize(("count", "size"), [(1000, 0), (4000, 64)])
async def test_fragments_within_the_bound_are_one_message(
    small_server: RunningServer, count: int, size: int
) -> None:
    peer = await RawWebSocket.connect(small_server.port)
    await peer.receive_event()
    head = encode_frame('{"type": "input_audio_buffer.clear"}', fin=False)
    await peer.send(
        head
        + encode_frame(b" " * size, CONTINUATION, fin=False) * count
        + encode_frame(b"", CONTINUATION)
    )
    assert (await peer.receive_event())["type"] == "input_audio_buffer.cleared"
    peer.close()


async def test_pongs_to_a_peer_that_does_not_read_are_not_buffered(
    small_server: RunningServer,
) -> None:
    peer = await RawWebSocket.connect(small_server.port)
    await peer.receive_event()
    client_transport = cast("asyncio.Transport", peer.writer.transport)
    client_transport.pause_reading()
    (server_connection,) = small_server.web_server.server_state.connections
    for _ in range(40):
        await peer.send(encode_frame(b"x" * 125, PING) * 500)
    assert server_connection.transport.get_write_buffer_size() < MIB, "2.6 MB of pings were sent"
    client_transport.resume_reading()
    await peer.send_event(type="input_audio_buffer.clear")
    assert (await peer.wait_for("input_audio_buffer.cleared"))["type"]
    peer.close()


# ---------------------------------------------------------------- release of memory


async def open_peer(server: RunningServer) -> RawWebSocket:
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {API_KEY}")
    await peer.receive_event()
    return peer


async def half_a_frame(server: RunningServer) -> RawWebSocket:
    peer = await open_peer(server)
    await peer.send(half(MIB))
    return peer


async def half_a_message(server: RunningServer) -> RawWebSocket:
    peer = await open_peer(server)
    await peer.send(encode_frame(b" " * MIB, fin=False))
    return peer


async def too_long_a_message(server: RunningServer) -> RawWebSocket:
    peer = await half_a_message(server)
    await peer.send(half(2 * MIB))
    return peer


async def an_ill_formed_frame(server: RunningServer) -> RawWebSocket:
    peer = await half_a_message(server)
    await peer.send(encode_frame(b"x", 3))
    return peer


async def whole_messages(server: RunningServer) -> RawWebSocket:
    peer = await open_peer(server)
    await peer.send(encode_frame(b" " * MIB + b"{}"))
    await peer.receive_event()
    return peer


async def half_a_response(server: RunningServer) -> RawWebSocket:
    """Use the WebSocket of the Responses API."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    peer = RawWebSocket(reader, writer)
    writer.write(upgrade_request("/v1/responses", Authorization=f"Bearer {API_KEY}"))
    await reader.readuntil(b"\r\n\r\n")
    await peer.send(encode_frame(b" " * MIB + b"{}"), half(MIB))
    await peer.receive_event()
    return peer


async def over_http(server: RunningServer, sent: bytes) -> RawWebSocket:
    peer = RawWebSocket(*await asyncio.open_connection("127.0.0.1", server.port))
    await peer.send(sent)
    return peer


async def half_a_body(server: RunningServer) -> RawWebSocket:
    return await over_http(server, post(2 * MIB) + b" " * MIB)


async def half_a_head(server: RunningServer) -> RawWebSocket:
    return await over_http(server, b"GET /health HTTP/1.1\r\nX: " + b"x" * 30_000)


async def too_long_a_head(server: RunningServer) -> RawWebSocket:
    return await over_http(server, b"GET /health HTTP/1.1\r\nX: " + b"x" * 90_000)


async def a_pipelined_body(server: RunningServer) -> RawWebSocket:
    body = b'{"model": "demo", "input": "hello", "max_output_tokens": 300}'
    return await over_http(server, post(len(body)) + body + post(2 * MIB) + b" " * 100_000)


ABANDONED = [
    half_a_frame,
    half_a_message,
    too_long_a_message,
    an_ill_formed_frame,
    whole_messages,
    half_a_response,
    half_a_body,
    half_a_head,
    too_long_a_head,
    a_pipelined_body,
]


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("abandon", ABANDONED, ids=[each.__name__ for each in ABANDONED])
async def test_memory_of_a_connection_is_freed_without_garbage_collection(
    harness: EngineHarness,
    monkeypatch: pytest.MonkeyPatch,
    abandon: Callable[[RunningServer], Awaitable[RawWebSocket]],
    how: str,
) -> None:
    references: list[weakref.ref[object]] = []
    for kind in (guarded_http.GuardedHttp, guarded_websocket.GuardedWebSocket):
        connection_made = kind.connection_made

        def record(
            self: object, transport: object, original: Callable[..., None] = connection_made
        ) -> None:
            references.append(weakref.ref(self))
            original(self, transport)
            if isinstance(self, guarded_websocket.GuardedWebSocket):
                references.extend((weakref.ref(self.conn), weakref.ref(self.conn.reader)))

        monkeypatch.setattr(kind, "connection_made", record)
    limits = Limits(resume_window_s=0, detach_grace_s=0, sweep_interval_s=0.02)
    settings = GatewaySettings(
        tenants={API_KEY: "default"}, served_model_name=("demo",), limits=limits
    )
    async with serve_harness(harness, settings) as server:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                peer = await abandon(server)
                await asyncio.sleep(0.05)
                peer.reset() if how == "RST" else peer.close()
            await wait_until(lambda: not server.web_server.server_state.connections)
            await wait_until(lambda: server.web_server.incoming_budget.charged_bytes == 0)
            await wait_until(lambda: not [each for each in references if each() is not None])
        finally:
            gc.enable()

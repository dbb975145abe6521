"""Hostile peers: unfinished handshakes, ill-formed frames, peers that never read or disconnect."""

import asyncio
import contextlib
import json
import resource
import socket
from pathlib import Path
from typing import cast

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.hardening import guarded_http, guards
from continuo.realtime.server.hardening.guarded_websocket import (
    GuardedWebSocket,
    frame_head,
)
from continuo.realtime.server.process import web_server
from continuo.realtime.server.process.web_server import USER_TIMEOUT_MS, bind
from tests.support.clients import open_realtime_session
from tests.support.configured_logging import configured_logging
from tests.support.engines import EngineHarness
from tests.support.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    RawWebSocket,
    encode_frame,
    upgrade_request,
)
from tests.support.waiting import wait_until
from tests.support.web_servers import API_KEY, RunningServer, serve_harness

pytestmark = pytest.mark.slow


async def test_unfinished_handshake_is_dropped_after_a_timeout(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 0.05)
    async with serve_harness(harness, GatewaySettings()) as server:
        half = [b"", b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: webso"]
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in half]
        for (_, writer), start in zip(connections, half, strict=True):
            writer.write(start)
        for reader, writer in connections:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()


async def test_connections_that_are_made_at_the_same_time_are_accepted_together(
    harness: EngineHarness,
) -> None:
    """If a busy event loop accepted one in each iteration, hundreds would wait for long."""
    async with serve_harness(harness, GatewaySettings()) as server:
        open_connections = server.web_server.server_state.connections
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(160)]
        iterations = 0
        while len(open_connections) < len(clients):
            await asyncio.sleep(0)
            iterations += 1
        for client in clients:
            client.close()
        await wait_until(lambda: not open_connections)
    assert iterations <= 2 * len(clients) / web_server.ACCEPTS_MAX


async def test_finished_handshake_has_no_timeout(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 0.05)
    async with (
        serve_harness(harness, GatewaySettings()) as server,
        open_realtime_session(server.url) as client,
    ):
        await asyncio.sleep(0.15)
        await client.send("input_audio_buffer.clear")
        await client.expect("input_audio_buffer.cleared")


async def test_listening_sockets_set_tcp_user_timeout_and_nodelay() -> None:
    with bind("127.0.0.1", 0) as sock:
        ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert ms == USER_TIMEOUT_MS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_reset_during_a_response_ends_a_session_without_resume_window(
    harness: EngineHarness,
) -> None:
    async with serve_harness(harness, GatewaySettings(limits=Limits(resume_window_s=0))) as server:
        async with open_realtime_session(server.url) as client:
            await client.start_response()
            await client.wait_deltas(1)
            client.socket.transport.abort()
            await harness.wait_until_empty()
        assert (await harness.engine.fleet.stats()).active_turns == 0


async def test_fragmented_message_is_received_as_one(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.socket.send(['{"type": ', '"input_audio_buffer.clear"', "}"])
        await client.expect("input_audio_buffer.cleared")


@pytest.mark.parametrize(("extra", "code"), [(1024, None), (2 * 1024 * 1024, 1009)])
async def test_frame_over_the_limit_is_an_error_and_over_twice_closes(
    server: RunningServer, extra: int, code: int | None
) -> None:
    async with open_realtime_session(server.url) as client:
        half = "x" * (512 * 1024 + extra // 2)
        with contextlib.suppress(ConnectionClosed):
            await client.socket.send([half, half])
        if code is None:
            await client.expect("error")
            return
        assert await client.wait_close_code() == code


async def test_oversized_frame_is_read_to_its_end_so_that_1009_arrives(
    server: RunningServer,
) -> None:
    """Half of the frame is still unsent when the server detects the excess."""
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {API_KEY}")
    await peer.receive_event()
    await peer.send(encode_frame(b"x" * 16 * 1024 * 1024))
    assert await peer.wait_close_code() == 1009
    assert await peer.receive() is None, "the connection ends in order, without a reset"
    peer.close()


async def send_forever(peer: RawWebSocket, chunk: bytes) -> None:
    """Send `chunk` again and again until cancelled. Raises ConnectionError if disconnected."""
    while True:
        if peer.writer.is_closing():  # uvloop would raise RuntimeError
            raise ConnectionResetError
        peer.writer.write(chunk)
        await peer.writer.drain()


async def test_endless_frame_is_read_up_to_a_bound(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "LINGER_BYTES_MAX", 1024 * 1024)
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {API_KEY}")
    await peer.receive_event()
    await peer.send(encode_frame(length=2**62))
    chunk = b"x" * 65536
    with pytest.raises(ConnectionError):
        await send_forever(peer, chunk)


async def test_invalid_utf8_closes_without_a_traceback(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with configured_logging():
        async with open_realtime_session(server.url) as client:
            await client.socket.send(b"\xff\xfe", text=True)
            assert await client.wait_close_code() == 1007
    assert "Traceback" not in capsys.readouterr().err


# ---------------------------------------------------------------- ill-formed frames

CLEAR = '{"type": "input_audio_buffer.clear"}'
ILL_FORMED = {
    "a reserved opcode": (encode_frame(CLEAR, 3), 1002),
    "a reserved control opcode": (encode_frame(b"", 11), 1002),
    "a reserved bit": (encode_frame(CLEAR, rsv=4), 1002),
    "compressed without negotiation": (encode_frame(b"\xaa\x56\x4a\x01", rsv=4), 1002),
    "an unmasked frame": (encode_frame(CLEAR, masked=False), 1002),
    "a fragmented ping": (encode_frame(b"", PING, fin=False), 1002),
    "a ping of 126 bytes": (encode_frame(b"x" * 126, PING), 1002),
    "a continuation without a start": (encode_frame(CLEAR, CONTINUATION), 1002),
    "a message inside of another": (encode_frame(CLEAR, fin=False) + encode_frame(CLEAR), 1002),
    "an invalid close code": (encode_frame(b"\x03\xec", CLOSE), 1002),
    "a close frame of one byte": (encode_frame(b"\x03", CLOSE), 1002),
    "invalid UTF-8": (encode_frame(b"\xff\xfe"), 1007),
    "a binary message": (encode_frame(CLEAR, BINARY), 1003),
    "a length of 2^63": (encode_frame(length=2**63), 1009),
    "a length of 2^62": (encode_frame(length=2**62), 1009),
    "fragments over the limit together": (
        encode_frame(b"x" * 1_048_576, fin=False)
        + encode_frame(b"x" * 1_048_576, CONTINUATION, fin=False)
        + encode_frame(b"x" * 65_536, CONTINUATION),
        1009,
    ),
}


@pytest.mark.parametrize(("sent", "code"), ILL_FORMED.values(), ids=list(ILL_FORMED))
async def test_ill_formed_frame_closes_with_the_right_code(
    server: RunningServer, sent: bytes, code: int
) -> None:
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {API_KEY}")
    await peer.receive_event()
    await peer.send(sent)
    assert await peer.wait_close_code() == code
    peer.close()


async def test_compression_is_not_negotiated(server: RunningServer) -> None:
    offer = "permessage-deflate; client_max_window_bits"
    bearer = f"Bearer {API_KEY}"
    peer = await RawWebSocket.connect(
        server.port, Authorization=bearer, Sec_WebSocket_Extensions=offer
    )
    assert "extensions" not in peer.response_head.lower()
    peer.close()


# ---------------------------------------------------------------- disconnecting

PARTS = {
    "half a header": encode_frame(CLEAR)[:3],
    "half a frame": encode_frame(CLEAR)[:20],
    "half a message": encode_frame(CLEAR, fin=False),
    "nothing": b"",
}


SHORT_LIVED = Limits(resume_window_s=0.1, detach_grace_s=0.05, sweep_interval_s=0.05)
"""Limits under which a session does not wait for a client that disconnected."""


async def until_released(harness: EngineHarness, server: RunningServer) -> None:
    """Wait until the engine has no session and the web server no connection."""
    async with asyncio.timeout(60):
        fleet, state = harness.engine.fleet, server.web_server.server_state
        while await fleet.list_sessions() or state.connections:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
async def test_disconnect_in_the_middle_of_a_frame_releases_everything(
    harness: EngineHarness, part: bytes, how: str
) -> None:
    async with serve_harness(harness, GatewaySettings(limits=SHORT_LIVED)) as server:
        await disconnect_peers(server, part, how)
        await until_released(harness, server)
    assert (await harness.engine.fleet.stats()).active_turns == 0


async def disconnect_peers(server: RunningServer, part: bytes, how: str) -> None:
    for _ in range(25):
        peer = await RawWebSocket.connect(server.port)
        await peer.receive_event()
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        await peer.send_event(type="conversation.item.create", item=item)
        await peer.send_event(type="response.create")
        await peer.wait_for("response.created")
        await peer.send(part)
        if how == "RST":
            peer.reset()
        else:
            peer.writer.write_eof()


async def test_peer_that_answers_no_ping_is_disconnected(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sees the same on a network path that drops both directions."""
    monkeypatch.setattr(web_server, "PING_S", 0.1)
    async with serve_harness(harness, GatewaySettings(limits=SHORT_LIVED)) as server:
        peer = await RawWebSocket.connect(server.port)
        await peer.receive_event()
        assert await peer.wait_close_code() == 1011
        await until_released(harness, server)
        peer.close()


# ---------------------------------------------------------------- holding resources


async def test_five_hundred_unfinished_handshakes_block_no_other_client(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 2.0)
    async with serve_harness(harness, GatewaySettings()) as server:
        connections = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", server.port) for _ in range(500))
        )
        for number, (_, writer) in enumerate(connections):
            writer.write(upgrade_request()[: number % 100 + 1])
        peer = await RawWebSocket.connect(server.port)
        assert (await peer.receive_event())["type"] == "session.created"
        for reader, writer in connections:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        peer.close()


async def test_unfinished_body_is_dropped_after_a_timeout(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "BODY_TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        b"Authorization: Bearer " + API_KEY.encode() + b"\r\n\r\n{"
    )
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


@pytest.mark.parametrize("bytes_read", [0, 512], ids=["not at all", "slowly"])
async def test_client_that_does_not_read_is_disconnected_at_the_outbox_bound(
    harness: EngineHarness, bytes_read: int
) -> None:
    """Each error is longer than the command it answers; other clients are served meanwhile."""
    limits = msgspec.structs.replace(
        SHORT_LIVED, outbox_bytes_max=32 * 1024, outbox_over_limit_s_max=0.5
    )
    async with serve_harness(harness, GatewaySettings(limits=limits)) as server:
        peer = await RawWebSocket.connect(server.port, 4096)
        peer.reader._limit = 1024  # type: ignore[attr-defined]  # set by no public method
        commands = encode_frame(f'{{"type": "response.cancel", "event_id": "{"e" * 500}"}}') * 100

        async def keep_sending() -> None:
            with contextlib.suppress(ConnectionError):
                await send_forever(peer, commands)

        async def keep_reading() -> None:
            while bytes_read:
                await peer.reader.read(bytes_read)
                await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(keep_sending()), asyncio.create_task(keep_reading())]
        async with asyncio.timeout(60):
            while server.web_server.server_state.connections:
                async with open_realtime_session(server.url):
                    pass
                await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        peer.close()
        await until_released(harness, server)


UNREAD_COMMANDS = {
    "as long as their errors": f'{{"type": "response.cancel", "response_id": "{"r" * 200}"}}',
    "as short as possible": "{}",
}
"""Commands that are answered with errors. Parsed, a short one takes thirty times its bytes."""


@pytest.mark.parametrize("command", UNREAD_COMMANDS.values(), ids=list(UNREAD_COMMANDS))
async def test_client_that_reads_nothing_costs_little_and_is_closed(
    harness: EngineHarness, command: str
) -> None:
    async with serve_harness(harness, GatewaySettings()) as server:
        async with open_realtime_session(server.url) as client:  # what the first client loads
            await client.send("response.cancel")
            await client.wait_for("error")
        before_bytes = _resident_bytes()
        peers = [await _unread_peer(server.port) for _ in range(CLIENT_COUNT)]
        connections = cast("set[GuardedWebSocket]", server.web_server.server_state.connections)
        sending = [asyncio.create_task(_flood(peer, command)) for peer in peers]
        peak_bytes = before_bytes
        async with asyncio.timeout(60):
            while connections:
                peak_bytes = max(peak_bytes, _resident_bytes())
                await asyncio.sleep(0.05)
        # The tests and the server are one process, so this counts the buffers of both ends.
        assert (peak_bytes - before_bytes) / CLIENT_COUNT < 1024 * 1024
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def test_many_small_messages_of_one_read_are_parsed_one_by_one_and_all_answered(
    server: RunningServer,
) -> None:
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {API_KEY}")
    await peer.receive_event()
    (connection,) = cast("set[GuardedWebSocket]", server.web_server.server_state.connections)
    queued = list[int]()
    parse = connection.parse_slice

    def parse_and_count() -> bool:
        has_more = parse()
        queued.append(connection.queue.qsize())
        return has_more

    connection.parse_slice = parse_and_count
    frame = encode_frame(CLEAR)
    await peer.send(frame * 3000)
    for _ in range(3000):
        assert (await peer.receive_event())["type"] == "input_audio_buffer.cleared"
    assert len(queued) >= 3000
    assert max(queued) == 1
    peer.close()


@pytest.mark.parametrize("count", [1, 10, 500])
async def test_pings_that_arrive_together_are_answered_in_order(
    server: RunningServer, count: int
) -> None:
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {API_KEY}")
    await peer.receive_event()
    pings = [encode_frame(f"{number:03}", PING) for number in range(count)]
    await peer.send(b"".join(pings) + encode_frame(CLEAR))
    pongs: list[bytes] = []
    while (received := await peer.receive()) is not None and received.opcode == PONG:
        pongs.append(received.payload)
    assert received is not None
    assert json.loads(received.payload)["type"] == "input_audio_buffer.cleared"
    assert pongs == [f"{number:03}".encode() for number in range(count)]
    peer.close()


async def test_client_that_reads_again_in_time_receives_the_close_frame(
    harness: EngineHarness,
) -> None:
    limits = msgspec.structs.replace(SHORT_LIVED, send_timeout_s=0.3)
    async with serve_harness(harness, GatewaySettings(limits=limits)) as server:
        peer = await _unread_peer(server.port, 32 * 1024)
        (connection,) = cast("set[GuardedWebSocket]", server.web_server.server_state.connections)
        sock = connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)
        # 50 KB, which the server's socket takes at once, and 350 KB of errors: the buffers of the
        # sockets take 130 KB, and the server's transport 64. With more commands, the kernel of a
        # client whose buffer is full drops the window updates that it needs to send on.
        peer.writer.write(encode_frame('{"type": "response.cancel"}') * 1_500)
        await wait_until(lambda: connection.close_sent)
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert await peer.wait_close_code() == 1013


CLIENT_COUNT = 12


async def _unread_peer(port: int, buffer_bytes: int = 4096) -> RawWebSocket:
    """Connect a client with a small receive buffer that reads nothing."""
    peer = await RawWebSocket.connect(port, buffer_bytes)
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    return peer


async def _flood(peer: RawWebSocket, command: str) -> None:
    commands = encode_frame(command)
    commands *= 12_000 // len(commands)
    with contextlib.suppress(ConnectionError):
        while True:
            peer.writer.write(commands)
            await peer.writer.drain()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
def test_frame_head_equals_that_of_the_websockets_library(size: int) -> None:
    body = bytes(size)
    assert frame_head(size) + body == Frame(Opcode.TEXT, body).serialize(mask=False)

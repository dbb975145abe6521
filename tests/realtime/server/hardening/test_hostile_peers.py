"""What peers do to a server: half a handshake, frames that are none, never reading, going away."""

import asyncio
import contextlib
import logging
import socket

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from continuo.realtime.limits import Limits
from continuo.realtime.server import logging_setup
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.hardening import guarded_http, guards
from continuo.realtime.server.hardening.guarded_websocket import frame_head
from continuo.realtime.server.process import web_server
from continuo.realtime.server.process.web_server import USER_TIMEOUT_MS, bind
from tests.support.engines import Bench
from tests.support.frames import BINARY, CLOSE, CONT, PING, Peer, frame, upgrade
from tests.support.web_servers import BEARER, KEY, Running, closed, first, serve


async def test_half_a_handshake_is_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 0.05)
    async with serve(bench, GatewaySettings()) as running:
        half = [b"", b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: webso"]
        halves = [await asyncio.open_connection("127.0.0.1", running.port) for _ in half]
        for (_, writer), start in zip(halves, half, strict=True):
            writer.write(start)
        for reader, writer in halves:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()


async def test_a_whole_handshake_is_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 0.05)
    async with serve(bench, GatewaySettings()) as running, connect(running.url) as socket:
        await first(socket)
        await asyncio.sleep(0.15)
        await socket.send('{"type": "input_audio_buffer.clear"}')
        assert (await first(socket))["type"] == "input_audio_buffer.cleared"


async def test_listening_sockets_drop_peers_that_do_not_acknowledge() -> None:
    with bind("127.0.0.1", 0) as sock:
        ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert ms == USER_TIMEOUT_MS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_reset_in_the_middle_of_an_answer_is_the_end_without_a_window(bench: Bench) -> None:
    async with serve(bench, GatewaySettings(limits=Limits(resume_window_s=0))) as running:
        socket = await connect(running.url)
        await first(socket)
        await socket.send('{"type": "response.create"}')
        while (await first(socket))["type"] != "response.output_text.delta":
            pass
        socket.transport.abort()
        while await bench.engine.list_sessions():
            await asyncio.sleep(0.01)
        assert (await bench.engine.stats()).active_turns == 0


async def test_a_fragmented_message_counts_as_one(running: Running) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        await socket.send(['{"type": ', '"input_audio_buffer.clear"', "}"])
        assert (await first(socket))["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize(("extra", "code"), [(1024, None), (2 * 1024 * 1024, 1009)])
async def test_frames_over_the_limit(running: Running, extra: int, code: int | None) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        half = "x" * (512 * 1024 + extra // 2)
        with contextlib.suppress(ConnectionClosed):
            await socket.send([half, half])
        if code is None:
            assert (await first(socket))["type"] == "error"
            return
        assert await closed(socket) == code


async def test_an_over_long_frame_is_read_on_so_that_the_code_arrives(running: Running) -> None:
    """Half of it is still to be sent when the server has seen enough."""
    peer = await Peer.connect(running.port, Authorization=f"Bearer {KEY}")
    await peer.event()
    await peer.send(frame(b"x" * 16 * 1024 * 1024))
    assert await peer.close_code() == 1009
    assert await peer.recv() is None, "and then the end, not a reset"
    peer.close()


async def pour(peer: Peer, chunk: bytes) -> None:
    """Until it is stopped."""
    while True:
        peer.writer.write(chunk)
        await peer.writer.drain()


async def test_who_sends_for_ever_is_not_read_for_ever(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "LINGER_BYTES_MAX", 1024 * 1024)
    peer = await Peer.connect(running.port, Authorization=f"Bearer {KEY}")
    await peer.event()
    await peer.send(frame(length=2**62))
    chunk = b"x" * 65536
    with pytest.raises(ConnectionError):
        await pour(peer, chunk)


async def test_invalid_utf8_closes(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = logging.getLogger().handlers[:]
    logging_setup.configure("warning", ())
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        await socket.send(b"\xff\xfe", text=True)
        assert await closed(socket) == 1007
    logging.getLogger().handlers[:] = handlers
    assert "Traceback" not in capsys.readouterr().err


# ---------------------------------------------------------------- frames that are none

HELLO = '{"type": "input_audio_buffer.clear"}'
ILL_FORMED = {
    "a reserved opcode": (frame(HELLO, 3), 1002),
    "a reserved control opcode": (frame(b"", 11), 1002),
    "a reserved bit": (frame(HELLO, rsv=4), 1002),
    "compressed, though it was not agreed": (frame(b"\xaa\x56\x4a\x01", rsv=4), 1002),
    "no mask": (frame(HELLO, masked=False), 1002),
    "a ping in pieces": (frame(b"", PING, fin=False), 1002),
    "a ping of 126 bytes": (frame(b"x" * 126, PING), 1002),
    "a continuation of nothing": (frame(HELLO, CONT), 1002),
    "a message inside of another": (frame(HELLO, fin=False) + frame(HELLO), 1002),
    "a close code that is none": (frame(b"\x03\xec", CLOSE), 1002),
    "a close frame of one byte": (frame(b"\x03", CLOSE), 1002),
    "bytes that are no text": (frame(b"\xff\xfe"), 1007),
    "a binary message": (frame(HELLO, BINARY), 1003),
    "a length of 2^63": (frame(length=2**63), 1009),
    "a length of 2^62": (frame(length=2**62), 1009),
    "pieces over the limit together": (
        frame(b"x" * 1_048_576, fin=False)
        + frame(b"x" * 1_048_576, CONT, fin=False)
        + frame(b"x" * 65_536, CONT),
        1009,
    ),
}


@pytest.mark.parametrize(("sent", "code"), ILL_FORMED.values(), ids=list(ILL_FORMED))
async def test_an_ill_formed_frame_is_told_apart(running: Running, sent: bytes, code: int) -> None:
    peer = await Peer.connect(running.port, Authorization=f"Bearer {KEY}")
    await peer.event()
    await peer.send(sent)
    assert await peer.close_code() == code
    peer.close()


async def test_compression_is_not_agreed_to(running: Running) -> None:
    offer = "permessage-deflate; client_max_window_bits"
    bearer = f"Bearer {KEY}"
    peer = await Peer.connect(running.port, Authorization=bearer, Sec_WebSocket_Extensions=offer)
    assert "extensions" not in peer.head.lower()
    peer.close()


# ---------------------------------------------------------------- going away

PARTS = {
    "half a header": frame(HELLO)[:3],
    "half a frame": frame(HELLO)[:20],
    "half a message": frame(HELLO, fin=False),
    "nothing": b"",
}


FLEETING = Limits(resume_window_s=0.1, detach_grace_s=0.05, sweep_interval_s=0.05)
"""A session that was dropped does not wait for its client."""


async def gone(bench: Bench, running: Running) -> None:
    """Returns when neither the engine nor the web server holds anything of anybody."""
    async with asyncio.timeout(60):
        while await bench.engine.list_sessions() or running.server.server_state.connections:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
async def test_who_leaves_in_the_middle_is_gone(bench: Bench, part: bytes, how: str) -> None:
    async with serve(bench, GatewaySettings(limits=FLEETING)) as running:
        await leave(running, part, how)
        await gone(bench, running)
    assert (await bench.engine.stats()).active_turns == 0


async def leave(running: Running, part: bytes, how: str) -> None:
    for _ in range(25):
        peer = await Peer.connect(running.port)
        await peer.event()
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        await peer.say(type="conversation.item.create", item=item)
        await peer.say(type="response.create")
        await peer.until("response.created")
        await peer.send(part)
        if how == "RST":
            peer.reset()
        else:
            peer.writer.write_eof()


async def test_who_answers_no_ping_is_gone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the way in between has swallowed both directions."""
    monkeypatch.setattr(web_server, "PING_S", 0.1)
    async with serve(bench, GatewaySettings(limits=FLEETING)) as running:
        peer = await Peer.connect(running.port)
        await peer.event()
        assert await peer.close_code() == 1011
        await gone(bench, running)
        peer.close()


# ---------------------------------------------------------------- holding on


async def test_five_hundred_half_handshakes_keep_nobody_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 2.0)
    async with serve(bench, GatewaySettings()) as running:
        halves = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", running.port) for _ in range(500))
        )
        for number, (_, writer) in enumerate(halves):
            writer.write(upgrade()[: number % 100 + 1])
        peer = await Peer.connect(running.port)
        assert (await peer.event())["type"] == "session.created"
        for reader, writer in halves:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        peer.close()


async def test_half_a_body_is_dropped(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_http, "BODY_TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(
        b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n{"
    )
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


@pytest.mark.parametrize("bytes_read", [0, 512], ids=["not at all", "slowly"])
async def test_who_does_not_read_costs_a_bound_and_is_gone(bench: Bench, bytes_read: int) -> None:
    """Each refusal is longer than what asked for it; meanwhile others are answered."""
    limits = msgspec.structs.replace(
        FLEETING, outbox_bytes_max=32 * 1024, outbox_over_limit_s_max=0.5
    )
    async with serve(bench, GatewaySettings(limits=limits)) as running:
        peer = await Peer.connect(running.port)
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.reader._limit = 1024  # type: ignore[attr-defined]  # set by no public method
        asked = frame(f'{{"type": "response.cancel", "event_id": "{"e" * 500}"}}') * 100

        async def ask_on() -> None:
            with contextlib.suppress(ConnectionError):
                await pour(peer, asked)

        async def read_on() -> None:
            while bytes_read:
                await peer.reader.read(bytes_read)
                await asyncio.sleep(0.05)

        on = [asyncio.create_task(ask_on()), asyncio.create_task(read_on())]
        async with asyncio.timeout(60):
            while running.server.server_state.connections:
                async with connect(running.url) as other:
                    assert (await first(other))["type"] == "session.created"
                await asyncio.sleep(0.1)
        for task in on:
            task.cancel()
        await asyncio.gather(*on, return_exceptions=True)
        peer.close()
        await gone(bench, running)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
def test_a_frame_sent_at_once_looks_as_any_other(size: int) -> None:
    body = bytes(size)
    for opcode in (Opcode.TEXT, Opcode.BINARY):
        whole = Frame(opcode, body).serialize(mask=False)
        assert frame_head(size, is_binary=opcode is Opcode.BINARY) + body == whole

"""What peers do to a server: half a handshake, frames that are none, never reading, going away."""

import asyncio
import contextlib
import logging
import socket

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from realtime.limits import Limits
from realtime.server import app, logs, peers
from realtime.server.app import bind
from realtime.server.settings import Settings
from tests.realtime.served import BEARER, KEY, Running, closed, first, serve
from tests.support.engines import Bench
from tests.support.frames import Peer, frame


async def test_half_a_handshake_is_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "HEAD_S", 0.05)
    async with serve(bench, Settings()) as running:
        half = [b"", b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: webso"]
        halves = [await asyncio.open_connection("127.0.0.1", running.port) for _ in half]
        for (_, writer), start in zip(halves, half, strict=True):
            writer.write(start)
        for reader, writer in halves:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()


async def test_a_whole_handshake_is_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "HEAD_S", 0.05)
    async with serve(bench, Settings()) as running, connect(running.url) as socket:
        await first(socket)
        await asyncio.sleep(0.15)
        await socket.send('{"type": "input_audio_buffer.clear"}')
        assert (await first(socket))["type"] == "input_audio_buffer.cleared"


async def test_listening_sockets_drop_peers_that_do_not_acknowledge() -> None:
    with bind("127.0.0.1", 0) as sock:
        ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert ms == app.USER_TIMEOUT_MS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_reset_in_the_middle_of_an_answer_is_the_end_without_a_window(bench: Bench) -> None:
    async with serve(bench, Settings(limits=Limits(resume_window_s=0))) as running:
        socket = await connect(running.url)
        await first(socket)
        await socket.send('{"type": "response.create"}')
        while (await first(socket))["type"] != "response.output_text.delta":
            pass
        socket.transport.abort()
        while await bench.engine.list():
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
    monkeypatch.setattr(peers, "LINGER_BYTES", 1024 * 1024)
    peer = await Peer.connect(running.port, Authorization=f"Bearer {KEY}")
    await peer.event()
    await peer.send(frame(length=2**62))
    chunk = b"x" * 65536
    with pytest.raises(ConnectionError):
        await pour(peer, chunk)


async def test_invalid_utf8_closes(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = logging.getLogger().handlers[:]
    logs.configure("warning", ())
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        await socket.send(b"\xff\xfe", text=True)
        assert await closed(socket) == 1007
    logging.getLogger().handlers[:] = handlers
    assert "Traceback" not in capsys.readouterr().err

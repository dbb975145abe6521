"""Tests of the link: messages arrive in order, even if the other end reads slowly."""

import asyncio
import socket
import ssl
import threading
from pathlib import Path

import msgspec
import pytest

from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import EngineCommand, EngineEvent, TurnTokens
from tests.support.certificates import create_certificate
from tests.support.waiting import wait_until

MESSAGES = 20_000


async def test_messages_keep_their_order_when_the_socket_is_full() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    lost = asyncio.Event()
    link: Link[EngineEvent, EngineCommand] = Link(
        msgspec.msgpack.Decoder(list[EngineCommand]), lambda _: None, lost.set
    )
    received: list[int] = []
    reader = threading.Thread(target=_read, args=(theirs, received))
    reader.start()
    await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
    for number in range(MESSAGES):
        message = TurnTokens("s" * (number * 37 % 3000), "t", number, [1, 2, 3])
        if number % 7:
            link.send_now([message])
        else:
            link.send(message)
        if number % 500 == 499:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    link.close()
    await asyncio.to_thread(reader.join, 60)
    assert received == list(range(MESSAGES))
    await lost.wait()


@pytest.mark.process
async def test_link_with_tls_sends_each_frame_when_nothing_else_is_sent(
    tmp_path: Path,
) -> None:
    """The peer sends nothing, so nothing but a frame itself can begin to send it."""
    pem, key = create_certificate(tmp_path)
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(pem, key)
    client_context = ssl.create_default_context(cafile=str(pem))
    received: list[int] = []
    event_loop = asyncio.get_running_loop()
    decoder = msgspec.msgpack.Decoder(list[TurnTokens])
    server = await event_loop.create_server(
        lambda: Link(
            decoder,
            lambda frame: received.extend(message.first for message in frame),
            lambda: None,
        ),
        "127.0.0.1",
        0,
        ssl=server_context,
    )
    link: Link[EngineEvent, EngineCommand] = Link(
        msgspec.msgpack.Decoder(list[EngineCommand]), lambda _: None, lambda: None
    )
    await event_loop.create_connection(
        lambda: link,
        *server.sockets[0].getsockname(),
        ssl=client_context,
        server_hostname="engine",
    )
    for number in range(8):
        link.send_now([TurnTokens("s", "t", number, [1])])
        await wait_until(lambda: len(received) > number)  # noqa: B023 - called in this iteration
    link.close()
    server.close()


async def test_link_to_a_peer_that_does_not_read_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transport buffers one frame; the rest is queued up to a bound, then the link is lost."""
    monkeypatch.setattr("continuo.engine.wire.link.QUEUED_MESSAGES_MAX", 1_000)
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    link: Link[EngineEvent, EngineCommand] = Link(
        msgspec.msgpack.Decoder(list[EngineCommand]), lambda _: None, lost.set
    )
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
    frame = TurnTokens("s" * 100_000, "t", 0, [1, 2, 3])
    sent, buffered = 0, 0
    while not lost.is_set() and sent < 5_000:
        link.send_now([frame])
        sent += 1
        buffered = max(buffered, transport.get_write_buffer_size())
        await asyncio.sleep(0)
    theirs.close()
    assert lost.is_set()
    assert 1_000 < sent < 1_100
    assert buffered < 1 << 20


def _read(end: socket.socket, received: list[int]) -> None:
    """Read small chunks until the socket is closed."""
    decoder = msgspec.msgpack.Decoder(list[TurnTokens])
    buffer = bytearray()
    with end:
        while chunk := end.recv(3000 + len(received) % 5000):
            buffer += chunk
            while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4], "little"):
                size = int.from_bytes(buffer[:4], "little")
                received += [message.first for message in decoder.decode(buffer[4 : 4 + size])]
                del buffer[: 4 + size]

"""Tests of the link: messages arrive in order, even if the other end reads slowly."""

import asyncio
import socket
import threading

import msgspec

from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import EngineCommand, EngineEvent, TurnTokens

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

"""Link: carries messages between front and loop; alone knows that there is another process.

A frame is a 4-byte little-endian length and a MessagePack array of tagged structs. What is sent
within one turn of the event loop goes out as one frame.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import msgspec

Sent = TypeVar("Sent")
Received = TypeVar("Received")

FRAME_BYTES_MAX = 256 << 20
"""A frame longer than this is not ours: the link is dropped."""


class Link(asyncio.Protocol, Generic[Sent, Received]):
    """One end. `on_messages` is called with what each frame held, `on_lost` once at the end."""

    def __init__(
        self,
        decoder: "msgspec.msgpack.Decoder[list[Received]]",
        on_messages: Callable[[list[Received]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self.on_messages = on_messages
        """May be replaced while the link lives."""
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._to_send: list[Sent] = []

    def send(self, *messages: Sent) -> None:
        """Queues messages for this turn of the event loop. Silently dropped once the link is lost;
        the other side learns that from `on_lost`."""
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_send.extend(messages)

    def send_all(self, messages: Sequence[Sent]) -> None:
        if messages:
            self.send(*messages)

    def close(self) -> None:
        """Sends what is queued, then hangs up."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hangs up at once; what is queued is lost."""
        self._to_send.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is not a subclass

    def data_received(self, data: bytes) -> None:
        buffer = self._received
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "little")
            if size > FRAME_BYTES_MAX:
                assert self._transport is not None
                self._transport.abort()
                return
            if len(buffer) - start - 4 < size:
                break
            frame = bytes(buffer[start + 4 : start + 4 + size])
            start += 4 + size
            self.on_messages(self._decoder.decode(frame))
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def _flush(self) -> None:
        messages, self._to_send = self._to_send, []
        if messages and self._transport is not None:
            body = self._encoder.encode(messages)
            self._transport.write(len(body).to_bytes(4, "little") + body)

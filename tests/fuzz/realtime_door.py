"""WS /v1/realtime: events as JSON or MessagePack, and bytes that are frames, nearly."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from tests.fuzz import mutate
from tests.fuzz.corpus import EVENTS
from tests.fuzz.doors import Tally, Thrown
from tests.support.frames import BINARY, TEXT, Frame, Peer, frame

EVENT_CODES = {1000, 1007, 1009}
"""session.close said, too many frames that are no JSON, over-long."""
WIRE_CODES = {*EVENT_CODES, 1001, 1002, 1003, 1005, 1006, 1008, 1011}
"""A close frame of the client is answered with its own code."""


class Codec(NamedTuple):
    subprotocol: str
    opcode: int
    spoil: Callable[[random.Random], Thrown]
    write: Callable[[object], Thrown]
    read: Callable[[bytes], Any]
    error: bytes
    """Is in every frame that says one."""


JSON = Codec(
    "realtime",
    TEXT,
    lambda source: mutate.event(source, EVENTS),
    json.dumps,
    json.loads,
    b'"type":"error"',
)
MSGPACK = Codec(
    "realtime.msgpack",
    BINARY,
    lambda source: mutate.packed(source, EVENTS),
    msgspec.msgpack.encode,
    msgspec.msgpack.decode,
    b"\xa4type\xa5error",
)


class Events:
    """After all of them the connection answers a question."""

    def __init__(self, port: int, tally: Tally, codec: Codec) -> None:
        self._port = port
        self._tally = tally
        self._codec = codec

    def spoilt(self, source: random.Random) -> list[Thrown]:
        return [self._codec.spoil(source) for _ in range(source.randrange(1, 120))]

    def packed(self, thrown: Sequence[Thrown]) -> list[bytes]:
        return [frame(each, self._codec.opcode) for each in thrown]

    async def throw(self, packed: Sequence[bytes], odd: bool) -> str | None:
        peer = await Peer.connect(self._port, Sec_WebSocket_Protocol=self._codec.subprotocol)
        marker = self._tally.marker()
        question = {"type": "conversation.item.retrieve", "item_id": marker, "event_id": marker}
        asked = frame(self._codec.write(question), self._codec.opcode)
        throwing = asyncio.create_task(peer.send(*packed, asked))
        wrong = await self._tally.heard(peer, EVENT_CODES, lambda got: self._judge(got, marker))
        await throwing
        peer.reset() if odd else peer.close()
        return wrong

    def _judge(self, got: Frame, marker: str) -> str | None:
        if got.opcode != self._codec.opcode or self._codec.error not in got.payload:
            return None
        error = self._codec.read(got.payload)["error"]
        if error["type"] == "server_error":
            return f"a fault of the server: {error['message']}"
        return "" if error["event_id"] == marker else None


class Wire:
    """Bytes on one connection, which must then end."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally

    def spoilt(self, source: random.Random) -> list[Thrown]:
        return [mutate.wire(source)]

    def packed(self, thrown: Sequence[Thrown]) -> list[bytes]:
        return [each for each in thrown if isinstance(each, bytes)]

    async def throw(self, packed: Sequence[bytes], odd: bool) -> str | None:
        peer = await Peer.connect(self._port)
        await peer.event()
        await peer.send(*packed)
        with contextlib.suppress(OSError):
            peer.writer.write_eof()
        wrong = None
        try:
            code = await peer.close_code()
            own = int.from_bytes(packed[-1][-2:], "big")  # not looked at unless it is a close frame
            self._tally.codes[code] += 1
            if code not in WIRE_CODES and not 1000 <= code <= 4999 and code != own:
                wrong = f"closed with {code}"
        except ConnectionError:
            pass
        except TimeoutError:
            wrong = "neither answered nor closed"
        peer.close()
        return wrong

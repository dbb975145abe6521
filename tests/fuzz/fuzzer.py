"""Throws frames at a server on a real port, in this process, and sees how it takes them.

After each throw the connection answers a question, or was closed with a code that fits; nothing is
logged as an error, no error is called the server's, and no round of the event loop takes over
STALL_S_MAX of processor time. In the end nothing is left open.
"""

import asyncio
import contextlib
import gc
import json
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from tests.fuzz import mutate
from tests.fuzz.stalls import Stalls
from tests.support.frames import BINARY, CLOSE, TEXT, Peer, frame

STALL_S_MAX = 0.050
EVENT_CODES = {1000, 1007, 1009}
"""session.close said, too many frames that are no JSON, over-long."""
WIRE_CODES = {*EVENT_CODES, 1001, 1002, 1003, 1005, 1006, 1008, 1011}
"""A close frame of the client is answered with its own code."""


class Found(NamedTuple):
    seed: int
    what: str
    frames: Sequence[str | bytes]
    wire: bool
    """Bytes on the socket instead of frames."""


class _Codec(NamedTuple):
    subprotocol: str
    opcode: int
    write: Callable[[object], str | bytes]
    read: Callable[[bytes], Any]
    error: bytes
    """Is in every frame that says one."""


_JSON = _Codec("realtime", TEXT, json.dumps, json.loads, b'"type":"error"')
_MSGPACK = _Codec(
    "realtime.msgpack", BINARY, msgspec.msgpack.encode, msgspec.msgpack.decode, b"\xa4type\xa5error"
)


class Errors(logging.Handler):
    """What was logged as an error, or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.seen.append(logging.Formatter().format(record))


class Fuzzer:
    def __init__(self, port: int) -> None:
        self._port = port
        self._errors = Errors()
        self._marker = 0
        self._stalls = Stalls()
        self.thrown = 0
        self.longest_s = 0.0
        self.codes: dict[int, int] = {}

    def __enter__(self) -> "Fuzzer":
        logging.getLogger().addHandler(self._errors)
        asyncio.get_running_loop().set_exception_handler(self._faulted)
        gc.collect()
        gc.freeze()
        self._stalls.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stalls.__exit__()
        gc.unfreeze()
        asyncio.get_running_loop().set_exception_handler(None)
        logging.getLogger().removeHandler(self._errors)

    async def round(self, seed: int) -> Found | None:
        """One connection's worth; the same frames for the same seed."""
        source = random.Random(seed)
        if source.random() < 0.1:
            return await self.wire(mutate.wire(source), seed)
        spoilt = mutate.packed if source.random() < 0.3 else mutate.event
        return await self.events([spoilt(source) for _ in range(source.randrange(1, 120))], seed)

    async def events(self, thrown: Sequence[str | bytes], seed: int = -1) -> Found | None:
        """Text frames, or MessagePack, on one connection, which must be usable after them, or
        rightly closed."""
        codec = _MSGPACK if isinstance(thrown[0], bytes) else _JSON
        peer = await Peer.connect(self._port, Sec_WebSocket_Protocol=codec.subprotocol)
        self._marker += 1
        marker = f"marker_{self._marker}"
        question = {"type": "conversation.item.retrieve", "item_id": marker, "event_id": marker}
        throwing = asyncio.create_task(
            peer.send(*(frame(each, codec.opcode) for each in (*thrown, codec.write(question))))
        )
        wrong = await self._hear(peer, marker, codec)
        await throwing
        peer.reset() if seed % 2 else peer.close()
        return self._judge(seed, wrong, thrown)

    async def wire(self, thrown: bytes, seed: int = -1) -> Found | None:
        """Bytes on one connection, which must then end."""
        peer = await Peer.connect(self._port)
        await peer.event()
        await peer.send(thrown)
        with contextlib.suppress(OSError):
            peer.writer.write_eof()
        wrong = None
        try:
            code = await peer.close_code()
            own = int.from_bytes(thrown[-2:], "big")  # never looked at unless it is a close frame
            self.codes[code] = self.codes.get(code, 0) + 1
            if code not in WIRE_CODES and not 1000 <= code <= 4999 and code != own:
                wrong = f"closed with {code}"
        except ConnectionError:
            pass
        except TimeoutError:
            wrong = "neither answered nor closed"
        peer.close()
        return self._judge(seed, wrong, [thrown], wire=True)

    async def _hear(self, peer: Peer, marker: str, codec: "_Codec") -> str | None:
        """Until the marker comes back, or the end; what was wrong."""
        try:
            while (got := await peer.recv()) is not None:
                if got.opcode == CLOSE:
                    code = int.from_bytes(got.payload[:2], "big")
                    self.codes[code] = self.codes.get(code, 0) + 1
                    return None if code in EVENT_CODES else f"closed with {code}"
                if got.opcode != codec.opcode or codec.error not in got.payload:
                    continue
                error = codec.read(got.payload)["error"]
                if error["type"] == "server_error":
                    return f"a fault of the server: {error['message']}"
                if error["event_id"] == marker:
                    return None
        except TimeoutError:
            return "it answers no more"
        except ConnectionError as error:
            return f"reset: {error}"
        return "ended without a close frame"

    def _judge(
        self, seed: int, wrong: str | None, thrown: Sequence[str | bytes], *, wire: bool = False
    ) -> Found | None:
        self.thrown += len(thrown)
        stalled_s = self._stalls.take()
        self.longest_s = max(self.longest_s, stalled_s)
        if self._errors.seen:
            wrong = "\n".join(self._errors.seen)
            self._errors.seen.clear()
        elif wrong is None and stalled_s > STALL_S_MAX:
            wrong = f"the event loop stood still for {stalled_s * 1e3:.0f} ms"
        return None if wrong is None else Found(seed, wrong, thrown, wire)

    def _faulted(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._errors.seen.append(f"{context.get('message')}: {context.get('exception')!r}")


async def shrink(fuzzer: Fuzzer, found: Found) -> Found:
    """The same fault from fewer frames, where single ones or the last ones show it."""
    if found.wire:
        return found
    thrown = list(found.frames)
    while len(thrown) > 1:
        for part in (thrown[len(thrown) // 2 :], thrown[: len(thrown) // 2]):
            again = await fuzzer.events(part, found.seed)
            if again is not None:
                thrown, found = part, again
                break
        else:
            return found
    return found

"""WS /v1/realtime: mutated events, and malformed WebSocket frames."""

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence

from tests.fuzz import mutate
from tests.fuzz.corpus import EVENTS
from tests.fuzz.endpoints import Payload, Tally
from tests.support.frames import TEXT, Frame, RawWebSocket, encode_frame

EVENT_CODES = {1000, 1007, 1009}
"""After session.close, too many frames that are not JSON, and an over-long frame."""
WIRE_CODES = {*EVENT_CODES, 1001, 1002, 1003, 1005, 1006, 1008, 1011}
"""The server also echoes the code of a client's close frame."""


class RealtimeEvents:
    """Events, after which the connection must respond to a request."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally

    def generate(self, source: random.Random) -> list[Payload]:
        return [mutate.text_frame(source, EVENTS) for _ in range(source.randrange(1, 120))]

    def encode(self, payloads: Sequence[Payload]) -> list[bytes]:
        return [encode_frame(payload) for payload in payloads]

    async def send(self, encoded: Sequence[bytes], is_abrupt: bool) -> str | None:
        peer = await RawWebSocket.connect(self._port, Sec_WebSocket_Protocol="realtime")
        marker = self._tally.marker()
        event = {"type": "conversation.item.retrieve", "item_id": marker, "event_id": marker}
        request = encode_frame(json.dumps(event))
        sending = asyncio.create_task(peer.send(*encoded, request))
        problem = await self._tally.read_until(
            peer, EVENT_CODES, lambda received: self._judge(received, marker)
        )
        await sending
        peer.reset() if is_abrupt else peer.close()
        return problem

    def _judge(self, received: Frame, marker: str) -> str | None:
        if received.opcode != TEXT or b'"type":"error"' not in received.payload:
            return None
        error = json.loads(received.payload)["error"]
        if error["type"] == "server_error":
            return f"a server error: {error['message']}"
        return "" if error["event_id"] == marker else None


class WebSocketBytes:
    """Bytes on one connection, which the server must then end."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally

    def generate(self, source: random.Random) -> list[Payload]:
        return [mutate.websocket_bytes(source)]

    def encode(self, payloads: Sequence[Payload]) -> list[bytes]:
        return [payload for payload in payloads if isinstance(payload, bytes)]

    async def send(self, encoded: Sequence[bytes], is_abrupt: bool) -> str | None:
        peer = await RawWebSocket.connect(self._port)
        await peer.receive_event()
        await peer.send(*encoded)
        with contextlib.suppress(OSError):
            peer.writer.write_eof()
        problem = None
        try:
            code = await peer.wait_close_code()
            sent_code = int.from_bytes(
                encoded[-1][-2:], "big"
            )  # used only if this is a close frame
            self._tally.codes[code] += 1
            if code not in WIRE_CODES and not 1000 <= code <= 4999 and code != sent_code:
                problem = f"closed with {code}"
        except ConnectionError:
            pass
        except TimeoutError:
            problem = "neither response nor close"
        peer.close()
        return problem

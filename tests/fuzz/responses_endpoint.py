"""WS /v1/responses: mutated requests under several stream ids."""

import asyncio
import json
import random
from collections.abc import Sequence

from tests.fuzz import mutate
from tests.fuzz.corpus_responses import EVENTS
from tests.fuzz.endpoints import Payload, Tally
from tests.support.frames import TEXT, Frame, RawWebSocket, encode_frame

CODES = {1007, 1009}
"""After too many frames that are not JSON, and an over-long frame."""
FINAL_EVENTS = {"response.completed", "response.incomplete", "response.failed", "error"}


class ResponsesSocket:
    """Requests, after which a response under a new stream id must end; or all are abandoned."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally

    def generate(self, source: random.Random) -> list[Payload]:
        return [mutate.text_frame(source, EVENTS) for _ in range(source.randrange(1, 60))]

    def encode(self, payloads: Sequence[Payload]) -> list[bytes]:
        return [
            encode_frame(self._tally.insert_response_id(payload))
            for payload in payloads
            if isinstance(payload, str)
        ]

    async def send(self, encoded: Sequence[bytes], is_abrupt: bool) -> str | None:
        peer = await RawWebSocket.connect(self._port, path="/v1/responses")
        marker = self._tally.marker()
        create = {"type": "response.create", "input": "x", "store": False, "max_output_tokens": 1}
        last = {"type": "response.cancel", "response_id": marker}
        last = last if is_abrupt else {**create, "stream_id": marker}
        sending = asyncio.create_task(peer.send(*encoded, encode_frame(json.dumps(last))))
        problem = await self._tally.read_until(
            peer, CODES, lambda received: self._judge(received, marker)
        )
        await sending
        peer.reset() if is_abrupt else peer.close()
        return problem

    def _judge(self, received: Frame, marker: str) -> str | None:
        if b'"server_error"' in received.payload:
            return f"a server error: {received.payload[:2000]!r}"
        self._tally.record_response_id(received.payload)
        is_marked = received.opcode == TEXT and marker.encode() in received.payload
        return "" if is_marked and json.loads(received.payload)["type"] in FINAL_EVENTS else None

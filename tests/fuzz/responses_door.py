"""WS /v1/responses: what is read is answered in order; what is made goes on in its lanes."""

import asyncio
import json
import random
from collections.abc import Sequence

from tests.fuzz import mutate
from tests.fuzz.corpus_responses import EVENTS
from tests.fuzz.doors import Tally, Thrown
from tests.support.frames import TEXT, Frame, Peer, frame

CODES = {1007, 1009}
"""Too many frames that are no JSON, over-long."""
ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


class Lanes:
    """After all of them a response on a lane of its own comes to an end, which no other waits for;
    or they are all left in the middle of theirs."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally

    def spoilt(self, source: random.Random) -> list[Thrown]:
        return [mutate.event(source, EVENTS) for _ in range(source.randrange(1, 60))]

    def packed(self, thrown: Sequence[Thrown]) -> list[bytes]:
        return [frame(self._tally.known(each)) for each in thrown if isinstance(each, str)]

    async def throw(self, packed: Sequence[bytes], odd: bool) -> str | None:
        peer = await Peer.connect(self._port, path="/v1/responses")
        marker = self._tally.marker()
        asked = {"type": "response.create", "input": "x", "store": False, "max_output_tokens": 1}
        last = {"type": "response.cancel", "response_id": marker}
        last = last if odd else {**asked, "stream_id": marker}
        throwing = asyncio.create_task(peer.send(*packed, frame(json.dumps(last))))
        wrong = await self._tally.heard(peer, CODES, lambda got: self._judge(got, marker))
        await throwing
        peer.reset() if odd else peer.close()
        return wrong

    def _judge(self, got: Frame, marker: str) -> str | None:
        if b'"server_error"' in got.payload:
            return f"a fault of the server: {got.payload[:2000]!r}"
        self._tally.remember(got.payload)
        about = got.opcode == TEXT and marker.encode() in got.payload
        return "" if about and json.loads(got.payload)["type"] in ENDS else None

"""Endpoints of the server: each generates mutated payloads, sends them and checks the replies."""

import random
import re
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from tests.support.frames import CLOSE, Frame, RawWebSocket

Payload = str | bytes
RESPONSE_ID = "resp_known"
"""Placeholder for the id of a recent response."""
_ID = re.compile(rb'"id":"(resp_[0-9a-f]+)"')


class Endpoint(Protocol):
    def generate(self, source: random.Random) -> list[Payload]:
        """Generate the payloads of one connection."""
        ...

    def encode(self, payloads: Sequence[Payload]) -> list[bytes]:
        """Encode the payloads as bytes of the connection."""
        ...

    async def send(self, encoded: Sequence[bytes], is_abrupt: bool) -> str | None:
        """Send them over one connection, which the server must keep usable or rightly close.

        `is_abrupt`: reset the connection, or leave a response unread. Returns the problem, if any.
        """
        ...


class Tally:
    """Counters and response ids that all endpoints share."""

    def __init__(self) -> None:
        self.codes: Counter[int] = Counter()
        """Close codes of connections and HTTP statuses."""
        self.responses: deque[str] = deque(maxlen=8)
        """Ids of the last responses."""
        self._markers = 0

    def record_response_id(self, data: bytes) -> None:
        """Record the response id at the beginning of `data`, if there is one."""
        match = _ID.search(data[:200])
        if match and match[1].decode() not in self.responses:
            self.responses.append(match[1].decode())

    def insert_response_id(self, text: str) -> str:
        """Replace RESPONSE_ID by the id of the last response."""
        return text.replace(RESPONSE_ID, self.responses[-1]) if self.responses else text

    def marker(self) -> str:
        self._markers += 1
        return f"marker_{self._markers}"

    async def read_until(
        self, peer: RawWebSocket, codes: Container[int], judge: Callable[[Frame], str | None]
    ) -> str | None:
        """Read until `judge` returns a problem, or "" for none, or the connection is closed.

        Returns the problem, if any; a close with one of `codes` is none.
        """
        try:
            while (frame := await peer.receive()) is not None:
                if frame.opcode == CLOSE:
                    code = int.from_bytes(frame.payload[:2], "big")
                    self.codes[code] += 1
                    return None if code in codes else f"closed with {code}"
                if (verdict := judge(frame)) is not None:
                    return verdict or None
        except TimeoutError:
            return "the server does not respond"
        except ConnectionError as error:
            return f"reset: {error}"
        return "ended without a close frame"

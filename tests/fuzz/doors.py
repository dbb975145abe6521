"""Where spoilt frames are thrown: each door makes its own, and sees how they are taken."""

import random
import re
from collections import Counter, deque
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from tests.support.frames import CLOSE, Frame, Peer

Thrown = str | bytes
KNOWN = "resp_known"
"""Stands for the id of a response that was made a moment ago."""
_ID = re.compile(rb'"id":"(resp_[0-9a-f]+)"')


class Door(Protocol):
    def spoilt(self, source: random.Random) -> list[Thrown]:
        """A connection's worth."""
        ...

    def packed(self, thrown: Sequence[Thrown]) -> list[bytes]:
        """As they go over the wire."""
        ...

    async def throw(self, packed: Sequence[bytes], odd: bool) -> str | None:
        """Over one connection, which must be usable after them, or rightly closed; what was wrong.
        `odd`: half of all connections are not ended politely."""
        ...


class Tally:
    """What all doors count together."""

    def __init__(self) -> None:
        self.codes: Counter[int] = Counter()
        """How connections were closed, and what HTTP answered."""
        self.responses: deque[str] = deque(maxlen=8)
        """Ids of those made last."""
        self._markers = 0

    def remember(self, said: bytes) -> None:
        """The response it is about, if it says so at once."""
        found = _ID.search(said[:200])
        if found and found[1].decode() not in self.responses:
            self.responses.append(found[1].decode())

    def known(self, text: str) -> str:
        """With an id that is known in the place of KNOWN."""
        return text.replace(KNOWN, self.responses[-1]) if self.responses else text

    def marker(self) -> str:
        self._markers += 1
        return f"marker_{self._markers}"

    async def heard(
        self, peer: Peer, codes: Container[int], judge: Callable[[Frame], str | None]
    ) -> str | None:
        """Until `judge` says what was wrong, or nothing (""), of a message, or the connection is
        closed, with one of `codes`; what was wrong."""
        try:
            while (got := await peer.recv()) is not None:
                if got.opcode == CLOSE:
                    code = int.from_bytes(got.payload[:2], "big")
                    self.codes[code] += 1
                    return None if code in codes else f"closed with {code}"
                if (verdict := judge(got)) is not None:
                    return verdict or None
        except TimeoutError:
            return "it answers no more"
        except ConnectionError as error:
            return f"reset: {error}"
        return "ended without a close frame"

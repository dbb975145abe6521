"""EncodedArray: a JSON array that is encoded as it grows."""

from collections.abc import Sequence

import msgspec

EMPTY_ARRAY = msgspec.Raw(b"[]")


class EncodedArray:
    """A JSON array of which each element is encoded once, when it is added.

    An event that repeats the whole array copies bytes. To encode 160,000 log-probabilities at the
    end of a response would stop the event loop for half a second.
    """

    def __init__(self) -> None:
        self._elements = bytearray()
        """The elements so far, each followed by a comma."""
        self._taken = 0
        """Number of bytes that `take_new` has returned."""

    def add(self, elements: Sequence[object]) -> None:
        if elements:
            self._elements += msgspec.json.encode(elements)[1:-1]
            self._elements += b","

    def take_new(self) -> msgspec.Raw:
        """Return the array of the elements added since the last call."""
        start, self._taken = self._taken, len(self._elements)
        return self._read(start)

    def read(self) -> msgspec.Raw:
        """Return the array of all elements."""
        return self._read(0)

    def _read(self, start: int) -> msgspec.Raw:
        return msgspec.Raw(b"[%b]" % self._elements[start:-1])

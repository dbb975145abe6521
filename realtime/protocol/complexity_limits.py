"""How much a parser has to make of a frame or a body, seen before it makes it. Pure.

An object costs a parser a hundred times what a letter of a text does. So values are counted first:
in slices, between which others can have their turn.
"""

from collections.abc import Iterator

from continuo.realtime.errors import BadFrame
from continuo.realtime.limits import BODY_ESCAPES_MAX, BODY_VALUES_MAX

SLICE_CHARS = 256 * 1024
"""Characters, or bytes."""


def check_complexity(data: str | bytes, label: str) -> Iterator[None]:
    """Goes through the `what` (frame, body), a slice a turn. Raises BadFrame."""
    marks, escapes = 1, 0
    for piece in _slices(data):
        marks += _count_value_ends(piece)
        escapes += piece.count("\\")
        yield
    if escapes > BODY_ESCAPES_MAX:
        raise _too_large(label, f"{escapes:,} escapes", BODY_ESCAPES_MAX)
    if marks <= BODY_VALUES_MAX:
        return
    values = _JsonValueCounter()
    for piece in _slices(data):
        values.feed(piece)
        if values.count > BODY_VALUES_MAX:
            break
        yield
    if values.count > BODY_VALUES_MAX:
        raise _too_large(label, f"{values.count:,} values or more", BODY_VALUES_MAX)


def count_json_values(frame: str | bytes, limit: int) -> int:
    """About how many values it holds, what stands in its texts left out. At once; nothing is looked
    at closely where there are no more marks than `limit`."""
    marks = 1 + sum(map(_count_value_ends, _slices(frame)))
    if marks <= limit:
        return marks
    values = _JsonValueCounter()
    for piece in _slices(frame):
        values.feed(piece)
    return values.count


def count_msgpack_values(frame: bytes, limit: int) -> int:
    """The same of a MessagePack frame. Keys are values there, so that twice the limit are looked
    for; what is no MessagePack counts as far as it goes."""
    if len(frame) <= 2 * limit:
        return 1
    at = seen = 0
    while at < len(frame) and seen <= 2 * limit:
        seen += 1
        at += _msgpack_value_bytes(frame, at)
    return seen if seen > 2 * limit else 1


_FIXED_SIZES = (
    {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}  # integers
    | {0xCA: 4, 0xCB: 8}  # floats
    | {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # extensions
    | {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}  # arrays and maps: their length alone
)
"""Bytes behind the first one, by that."""
_LENGTH_PREFIXES = (
    {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}  # texts
    | {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0)}  # bytes
    | {0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}  # extensions
)
"""Bytes of a length, and of what stands between it and so many bytes more."""


def _msgpack_value_bytes(frame: bytes, at: int) -> int:
    """Of the value that begins there, without what it holds."""
    kind = frame[at]
    if 0xA0 <= kind <= 0xBF:
        return 1 + kind - 0xA0
    if sized := _LENGTH_PREFIXES.get(kind):
        wide, more = sized
        return 1 + wide + more + int.from_bytes(frame[at + 1 : at + 1 + wide], "big")
    return 1 + _FIXED_SIZES.get(kind, 0)


class _JsonValueCounter:
    """Counts them in a JSON text that comes in pieces."""

    def __init__(self) -> None:
        self.count = 1
        self._in_string = 0
        """1: of a string."""
        self._is_escaped: bool = False
        """The next character is."""

    def feed(self, piece: str) -> None:
        piece = piece[1 if self._is_escaped else 0 :].replace("\\\\", "").replace('\\"', "")
        self._is_escaped = piece[-1:] == "\\"
        parts = piece.split('"')
        self.count += _count_value_ends("".join(parts[self._in_string :: 2]))
        self._in_string ^= 1 - len(parts) % 2


def _slices(data: str | bytes) -> Iterator[str]:
    """Of bytes, one character each: JSON's own marks are ASCII."""
    for start in range(0, len(data), SLICE_CHARS):
        piece = data[start : start + SLICE_CHARS]
        yield piece if isinstance(piece, str) else piece.decode("latin-1")


def _count_value_ends(text: str) -> int:
    """What ends a value. One that does not end is no deeper than a parser goes."""
    return text.count(",") + text.count("]") + text.count("}")


def _too_large(label: str, amount: str, limit: int) -> BadFrame:
    return BadFrame(f"The {label} holds {amount}; the limit is {limit:,}.", code="frame_too_large")

"""Bound on the JSON values of a frame or body, checked before it is parsed. Pure.

An object costs a parser a hundred times as much as a character of text. Values are therefore
counted before parsing, in slices; other connections are served between the slices.
"""

from collections.abc import Iterator

from continuo.realtime.errors import BadFrame
from continuo.realtime.limits import BODY_ESCAPES_MAX, BODY_VALUES_MAX

SLICE_CHARS = 64 * 1024
"""Characters of a str, or bytes, that are counted before other tasks of the event loop may run: up
to 0.5 ms."""


def check_body_complexity(data: str | bytes, label: str) -> Iterator[None]:
    """Count the values of a frame or body, one slice per iteration. Raises BadFrame over a limit;
    `label` names the data in the error."""
    value_ends, escapes = 1, 0
    for piece in _slices(data):
        value_ends += _count_value_ends(piece)
        escapes += piece.count("\\")
        yield
    if escapes > BODY_ESCAPES_MAX:
        raise _too_large(label, f"{escapes:,} escapes", BODY_ESCAPES_MAX)
    if value_ends <= BODY_VALUES_MAX:
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
    """Estimate the number of values in a JSON frame. Delimiters inside strings are counted too,
    unless that makes the number exceed `limit`; then they are excluded in a second count, which
    ends soon after it exceeds `limit`."""
    value_ends = 1 + sum(map(_count_value_ends, _slices(frame)))
    if value_ends <= limit:
        return value_ends
    values = _JsonValueCounter()
    for piece in _slices(frame):
        values.feed(piece)
        if values.count > limit:
            break
    return values.count


class _JsonValueCounter:
    """Count the values of a JSON text that is fed in pieces."""

    def __init__(self) -> None:
        self.count = 1
        self._in_string = 0
        """1 if the last piece ended inside a string, else 0."""
        self._is_escaped: bool = False
        """Whether the last piece ended in a backslash that escapes the next character."""

    def feed(self, piece: str) -> None:
        piece = piece[1 if self._is_escaped else 0 :].replace("\\\\", "").replace('\\"', "")
        self._is_escaped = piece[-1:] == "\\"
        parts = piece.split('"')
        self.count += _count_value_ends("".join(parts[self._in_string :: 2]))
        self._in_string ^= 1 - len(parts) % 2


def _slices(data: str | bytes) -> Iterator[str]:
    """Yield the data in slices, as strings. Each byte becomes one character, which preserves JSON's
    delimiters because they are ASCII."""
    for start in range(0, len(data), SLICE_CHARS):
        piece = data[start : start + SLICE_CHARS]
        yield piece if isinstance(piece, str) else piece.decode("latin-1")


def _count_value_ends(text: str) -> int:
    """Count the delimiters that end a value. Arrays and objects that are never closed are not
    counted; the parser's depth limit bounds them."""
    return text.count(",") + text.count("]") + text.count("}")


def _too_large(label: str, amount: str, limit: int) -> BadFrame:
    return BadFrame(f"The {label} holds {amount}; the limit is {limit:,}.", code="frame_too_large")

"""Bound on the JSON values of a frame or body, checked before it is parsed. Pure.

An object costs a parser a hundred times as much as a character of text. Values are therefore
counted before parsing, in slices: those of a body while it arrives, so that one over the limit is
refused before the rest is read, and those of a frame between other tasks of the event loop.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NoReturn

from continuo.realtime.errors import BadFrame
from continuo.realtime.limits import BODY_ESCAPES_MAX, BODY_VALUES_MAX

SLICE_CHARS = 32 * 1024
"""Characters of a str, or bytes, that are counted at once: up to 0.7 ms, if all are quotes."""
QUOTES_PER_VALUE_MAX = 4
"""Quotes for each value of a valid text: those of a string, and of its name in an object."""


class BodyComplexity:
    """The check of one frame or body, which is fed in the order of its bytes; `label` names it in
    errors."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._values = JsonValueCounter()
        self._escapes = 0

    def feed(self, piece: str | bytes) -> None:
        """Raises BadFrame over a limit."""
        for text in _slices(piece):
            self._escapes += text.count("\\")
            if self._escapes > BODY_ESCAPES_MAX:
                self._refuse(f"{self._escapes:,} escapes", BODY_ESCAPES_MAX)
            self._values.feed(text)
            if self._values.count > BODY_VALUES_MAX:
                self._refuse(f"{self._values.count:,} values", BODY_VALUES_MAX)

    def _refuse(self, amount: str, limit: int) -> NoReturn:
        raise BadFrame(
            f"The {self._label} holds {amount} or more; the limit is {limit:,}.",
            code="frame_too_large",
        )


def check_frame_complexity(frame: str) -> Iterator[None]:
    """Check a frame, one slice per iteration. Raises BadFrame over a limit."""
    complexity = BodyComplexity("frame")
    for piece in _slices(frame):
        complexity.feed(piece)
        yield


def count_values_over(frame: str | bytes, limit: int) -> int:
    """Return 0 if a JSON frame holds at most `limit` values, else a number of them above it."""
    if len(frame) <= limit:
        return 0  # Most frames: each value has a character of its own.
    values = JsonValueCounter()
    for piece in _slices(frame):
        values.feed(piece)
        if values.count > limit:
            return values.count
    return 0


def count_depth(text: str) -> int:
    """Return how many objects and arrays of a valid JSON text are within each other at most."""
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    without_strings = "".join(unescaped.split('"')[::2])
    steps = map(_DEPTH_STEPS.__getitem__, _BRACKET.findall(without_strings))
    return max(itertools.accumulate(steps), default=0)


_BRACKET = re.compile(r"[\[\]{}]")
_DEPTH_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


class JsonValueCounter:
    """Estimates the number of values of a JSON text that is fed in pieces: never too few in a valid
    one, and at most one more for each empty array or object."""

    def __init__(self) -> None:
        self._value_ends = 0
        self._quotes = 0
        self._in_string = 0
        """1 if the last piece ended inside a string, else 0."""
        self._is_escaped: bool = False
        """Whether the last piece ended in a backslash that escapes the next character."""

    @property
    def count(self) -> int:
        return max(1 + self._value_ends, self._quotes // QUOTES_PER_VALUE_MAX)

    def feed(self, piece: str) -> None:
        piece = piece[1 if self._is_escaped else 0 :].replace("\\\\", "").replace('\\"', "")
        self._is_escaped = piece[-1:] == "\\"
        parts = piece.split('"')
        self._value_ends += _count_value_ends("".join(parts[self._in_string :: 2]))
        self._quotes += len(parts) - 1
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

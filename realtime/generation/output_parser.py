"""Chunks of a model's output: text, and function calls within it. Pure."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class TextChunk(msgspec.Struct, frozen=True, gc=False):
    text: str


class CallStartChunk(msgspec.Struct, frozen=True):
    name: str


class CallArgumentsChunk(msgspec.Struct, frozen=True):
    text: str


class CallEndChunk(msgspec.Struct, frozen=True):
    is_complete: bool = True
    """False: its arguments were cut off, or are no JSON."""


ParsedChunk = TextChunk | CallStartChunk | CallArgumentsChunk | CallEndChunk


class OutputParser(Protocol):
    """Finds the calls in a model's text."""

    def push(self, text: str) -> Sequence[ParsedChunk]: ...
    def finish(self) -> Sequence[ParsedChunk]:
        """What was held back in case it became a call."""
        ...


class PlainTextParser:
    """Where there are no tools there are no calls."""

    def push(self, text: str) -> Sequence[ParsedChunk]:
        return (TextChunk(text),) if text else ()

    def finish(self) -> Sequence[ParsedChunk]:
        return ()

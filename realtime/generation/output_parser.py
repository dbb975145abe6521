"""Parts of a model's output: text, and function calls within it. Pure."""

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
    """False if the arguments were cut off, or are not valid JSON."""


ParsedChunk = TextChunk | CallStartChunk | CallArgumentsChunk | CallEndChunk


class OutputParser(Protocol):
    """A parser that finds function calls in the text of a model."""

    def push(self, text: str) -> Sequence[ParsedChunk]: ...
    def finish(self) -> Sequence[ParsedChunk]:
        """End the output. Returns the chunks of the text that was held back because it might have
        been the beginning of a call."""
        ...


class PlainTextParser:
    """Parser of output without tools: all of it is text."""

    def push(self, text: str) -> Sequence[ParsedChunk]:
        return (TextChunk(text),) if text else ()

    def finish(self) -> Sequence[ParsedChunk]:
        return ()

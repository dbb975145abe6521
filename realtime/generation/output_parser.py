"""Chunks of a model's output: text, and function calls within it. Pure."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Said(msgspec.Struct, frozen=True, gc=False):
    text: str


class CallBegun(msgspec.Struct, frozen=True):
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    text: str


class CallEnded(msgspec.Struct, frozen=True):
    complete: bool = True
    """False: its arguments were cut off, or are no JSON."""


Chunk = Said | CallBegun | CallArguments | CallEnded


class Reader(Protocol):
    """Finds the calls in a model's text."""

    def push(self, text: str) -> Sequence[Chunk]: ...
    def end(self) -> Sequence[Chunk]:
        """What was held back in case it became a call."""
        ...


class PlainReader:
    """Where there are no tools there are no calls."""

    def push(self, text: str) -> Sequence[Chunk]:
        return (Said(text),) if text else ()

    def end(self) -> Sequence[Chunk]:
        return ()

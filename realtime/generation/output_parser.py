"""Parts of a model's output: reasoning, text, and function calls. Pure.

The model's own tokens separate reasoning from text, and in some families also calls
(`OutputChannel`). In the others, an `OutputParser` finds the calls in the text.
"""

import json
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from continuo.engine import OutputChannel


class TextChunk(msgspec.Struct, frozen=True, gc=False):
    text: str


class ReasoningChunk(msgspec.Struct, frozen=True, gc=False):
    text: str


class CallStartChunk(msgspec.Struct, frozen=True):
    name: str


class CallArgumentsChunk(msgspec.Struct, frozen=True):
    text: str


class CallEndChunk(msgspec.Struct, frozen=True):
    is_complete: bool = True
    """False if the arguments were cut off, or are not valid JSON."""


ParsedChunk = TextChunk | ReasoningChunk | CallStartChunk | CallArgumentsChunk | CallEndChunk


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


class ChannelParser:
    """Parser of the whole output of a response, channel by channel.

    Space around reasoning, and before the text that follows it, belongs to the markup. Output that
    consists of the reasoning alone has an empty text."""

    def __init__(
        self,
        parser: OutputParser,
        reasoning_label: str = "",
        make_reasoning_parser: Callable[[], OutputParser] | None = None,
    ) -> None:
        """`parser`: finds calls in the text. `reasoning_label`: first line of all reasoning, which
        is left out. `make_reasoning_parser`: makes the parser that finds calls in one stretch of
        reasoning; None: there are none."""
        self._parser = parser
        self._make_reasoning_parser = make_reasoning_parser
        self._reasoning_parser: OutputParser | None = None
        self._label = reasoning_label
        self._channel: OutputChannel | None = None
        self._held: str = ""
        """The beginning of the reasoning, while it may be the label, or space after it, which may
        be its end."""
        self._has_begun = False
        """Whether the channel has had text."""
        self._arguments: list[str] = []
        self._follows_reasoning = False

    def push(self, channel: OutputChannel, text: str) -> Sequence[ParsedChunk]:
        if channel is self._channel:
            if self._has_begun and channel.kind == "text":  # nearly always
                return self._parser.push(text) if text else ()
            return self._push(channel, text)
        chunks = [*self._end_channel(), *self._begin_channel(channel)]
        return [*chunks, *self._push(channel, text)]

    def finish(self) -> Sequence[ParsedChunk]:
        """End the output. Returns the chunks of the text that was held back."""
        return [*self._end_channel(), *self._parser.finish()]

    def _begin_channel(self, channel: OutputChannel) -> Sequence[ParsedChunk]:
        self._channel, self._has_begun = channel, False
        self._held, self._arguments = "", list[str]()
        if channel.kind == "reasoning" and self._make_reasoning_parser is not None:
            self._reasoning_parser = self._make_reasoning_parser()
        return [CallStartChunk(channel.name)] if channel.kind == "call" else []

    def _push(self, channel: OutputChannel, text: str) -> Sequence[ParsedChunk]:
        match channel.kind:
            case "text":
                return self._push_text(text)
            case "reasoning":
                if self._reasoning_parser is None or not text:
                    return self._push_reasoning(text)
                return self._to_reasoning(self._reasoning_parser.push(text))
            case "call":
                self._arguments.append(text)
                return [CallArgumentsChunk(text)] if text else []

    def _push_text(self, text: str) -> Sequence[ParsedChunk]:
        if self._follows_reasoning and not self._has_begun:
            text = text.lstrip()
        self._has_begun = self._has_begun or bool(text)
        return self._parser.push(text) if text else ()

    def _push_reasoning(self, text: str) -> Sequence[ParsedChunk]:
        self._follows_reasoning = True
        text = self._held + text
        if not self._has_begun:
            text = text.lstrip()
            if text != self._label and self._label.startswith(text):
                self._held = text
                return ()
            text = text.removeprefix(self._label).lstrip() if self._label else text
            if not text:
                self._held = self._label
                return ()
            self._has_begun = True
        certain = text.rstrip()
        self._held = text[len(certain) :]
        return [ReasoningChunk(certain)] if certain else []

    def _to_reasoning(self, parsed: Sequence[ParsedChunk]) -> Sequence[ParsedChunk]:
        """Convert the text among the parsed chunks of reasoning to reasoning."""
        chunks: list[ParsedChunk] = []
        for chunk in parsed:
            if isinstance(chunk, TextChunk):
                chunks += self._push_reasoning(chunk.text)
            else:
                chunks.append(chunk)
        return chunks

    def _end_channel(self) -> Sequence[ParsedChunk]:
        if self._reasoning_parser is not None:
            parser, self._reasoning_parser = self._reasoning_parser, None
            return self._to_reasoning(parser.finish())
        if self._channel is not None and self._channel.kind == "call":
            return [CallEndChunk(is_complete=_is_json_object("".join(self._arguments)))]
        return []


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False

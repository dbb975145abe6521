"""Calls in what a model says, found by the engine's parser for the way it writes them, and the
grammar that makes it write them as the settings say."""

from collections.abc import Sequence
from typing import assert_never

from continuo.engine import (
    ArgumentsDelta,
    CallDone,
    CallStarted,
    ChatTemplate,
    TextDelta,
    ToolParser,
)
from continuo.realtime.generation.output_parser import (
    CallArguments,
    CallBegun,
    CallEnded,
    Chunk,
    PlainReader,
    Reader,
    Said,
)
from continuo.realtime.protocol.settings import Settings


class CallReader:
    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser

    def push(self, text: str) -> Sequence[Chunk]:
        return [_chunk(event) for event in self._parser.push(text)]

    def end(self) -> Sequence[Chunk]:
        return [_chunk(event) for event in self._parser.finish()]


def reader_for(settings: Settings, template: ChatTemplate) -> Reader:
    """Calls are looked for where the model was shown tools and may call them."""
    if not settings.tools or settings.tool_choice.mode == "none":
        return PlainReader()
    names = [tool.name for tool in settings.tools]
    return CallReader(ToolParser(template.tool_format, names))


def _chunk(event: TextDelta | CallStarted | ArgumentsDelta | CallDone) -> Chunk:
    match event:
        case TextDelta(text=text):
            return Said(text)
        case CallStarted(name=name):
            return CallBegun(name)
        case ArgumentsDelta(text=text):
            return CallArguments(text)
        case CallDone(complete=complete):
            return CallEnded(complete)
        case _:
            assert_never(event)

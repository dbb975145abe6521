"""Function calls in the output of a model, found by the engine's parser for the model's format."""

from collections.abc import Sequence
from typing import assert_never

from continuo.engine import (
    ChatTemplate,
    ParsedArguments,
    ParsedCallEnded,
    ParsedCallStarted,
    ParsedText,
    ToolParser,
)
from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    OutputParser,
    ParsedChunk,
    PlainTextParser,
    TextChunk,
)
from continuo.realtime.protocol.settings import GenerationSettings


class ToolCallParser:
    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser

    def push(self, text: str) -> Sequence[ParsedChunk]:
        return [_to_chunk(event) for event in self._parser.push(text)]

    def finish(self) -> Sequence[ParsedChunk]:
        return [_to_chunk(event) for event in self._parser.finish()]


def make_output_parser(settings: GenerationSettings, template: ChatTemplate) -> OutputParser:
    """Make the parser of a response's text. Function calls are parsed only if the settings have
    tools and allow calls."""
    if not settings.tools or settings.tool_choice.mode == "none":
        return PlainTextParser()
    names = [tool.name for tool in settings.tools]
    return ToolCallParser(ToolParser(template.tool_format, names))


def _to_chunk(
    event: ParsedText | ParsedCallStarted | ParsedArguments | ParsedCallEnded,
) -> ParsedChunk:
    match event:
        case ParsedText(text=text):
            return TextChunk(text)
        case ParsedCallStarted(name=name):
            return CallStartChunk(name)
        case ParsedArguments(text=text):
            return CallArgumentsChunk(text)
        case ParsedCallEnded(is_complete=complete):
            return CallEndChunk(complete)
        case _:
            assert_never(event)

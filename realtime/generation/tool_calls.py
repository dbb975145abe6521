"""Function calls in the output of a model, found by the engine's parser for the model's format."""

from collections.abc import Sequence
from typing import assert_never, cast

import msgspec

from continuo.engine import (
    ChatTemplate,
    ParsedArguments,
    ParsedCallEnded,
    ParsedCallStarted,
    ParsedText,
    ToolParser,
    find_types,
)
from continuo.realtime.generation.output_parser import (
    CallArgumentsChunk,
    CallEndChunk,
    CallStartChunk,
    ChannelParser,
    OutputParser,
    ParsedChunk,
    PlainTextParser,
    TextChunk,
)
from continuo.realtime.protocol.settings import GenerationSettings, Tool


class ToolCallParser:
    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser

    def push(self, text: str) -> Sequence[ParsedChunk]:
        return [_to_chunk(event) for event in self._parser.push(text)]

    def finish(self) -> Sequence[ParsedChunk]:
        return [_to_chunk(event) for event in self._parser.finish()]


def make_output_parser(settings: GenerationSettings, template: ChatTemplate) -> ChannelParser:
    """Make the parser of a response's output."""
    syntax = template.reasoning_format
    may_call = _may_call_within_reasoning(settings, template)
    return ChannelParser(
        make_text_parser(settings, template),
        "" if syntax is None else syntax.label,
        (lambda: make_text_parser(settings, template)) if may_call else None,
    )


def _may_call_within_reasoning(settings: GenerationSettings, template: ChatTemplate) -> bool:
    """Whether calls are read where the reasoning has not ended: a model such as Apertus writes them
    there. Not where calls have rules, because no grammar holds within reasoning, nor where a call
    has no marker, which reasoning cannot have by chance."""
    return (
        template.tool_format is not None
        and not template.tool_format.allows_bare
        and not template.tool_format.is_harmony
        and settings.tool_choice.mode == "auto"
        and settings.parallel_tool_calls
        and not any(tool.strict for tool in settings.tools)
    )


def make_text_parser(settings: GenerationSettings, template: ChatTemplate) -> OutputParser:
    """Make the parser of a response's text. Function calls are parsed only if the settings have
    tools and allow calls."""
    if not settings.tools or settings.tool_choice.mode == "none":
        return PlainTextParser()
    types = {tool.name: _read_types(tool) for tool in settings.tools}
    return ToolCallParser(
        ToolParser(
            template.tool_format, types.keys(), lambda name, key: types.get(name, {}).get(key)
        )
    )


def _read_types(tool: Tool) -> dict[str, frozenset[str] | None]:
    """Read the JSON types that the schema of a tool allows for each of its arguments."""
    schema: object = msgspec.json.decode(tool.parameters)
    properties = (
        cast(dict[str, object], schema).get("properties") if isinstance(schema, dict) else None
    )
    if not isinstance(properties, dict):
        return {}
    return {key: find_types(value) for key, value in cast(dict[str, object], properties).items()}


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

"""What clients ask of `POST /v1/chat/completions`. Keys that are not listed are ignored; null is as
good as absent."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from continuo.realtime import limits
from continuo.realtime.protocol.sampling import ItemId, Sampled, Text
from continuo.realtime.protocol.validation import Choices, decoded

ToolName = Annotated[str, Meta(min_length=1, max_length=limits.FUNCTION_NAME_CHARS_MAX)]
Tokens = Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)]


class PartIn(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: Text | None = None
    refusal: Text | None = None


class CalledIn(msgspec.Struct, frozen=True, kw_only=True):
    name: ToolName
    arguments: Text


class CallIn(msgspec.Struct, frozen=True, kw_only=True):
    id: ItemId
    function: CalledIn


class MessageIn(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[PartIn], Meta(max_length=limits.PARTS_MAX)] | None = None
    tool_calls: Annotated[list[CallIn], Meta(max_length=limits.PARTS_MAX)] | None = None
    tool_call_id: ItemId | None = None


class FunctionIn(msgspec.Struct, frozen=True, kw_only=True):
    name: ToolName
    description: Text | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class ToolIn(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds other than `function` are left out."""

    type: str = "function"
    function: FunctionIn | None = None


class NamedIn(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class ToolChoiceIn(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    function: NamedIn | None = None


class SchemaIn(msgspec.Struct, frozen=True, kw_only=True):
    name: ToolName
    schema: dict[str, object] | None = None
    strict: bool | None = None


class FormatIn(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaIn | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None


class Create(Sampled, frozen=True, kw_only=True):
    messages: Annotated[
        list[MessageIn], Meta(min_length=1, max_length=limits.RESPONSE_INPUT_ITEMS_MAX)
    ]
    model: str | None = None
    tools: Annotated[list[ToolIn], Meta(max_length=limits.TOOLS_MAX)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    """The older name."""
    response_format: FormatIn | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    logprobs: Literal[False] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


_CHOICES: Choices = {
    "messages[].role": ("system", "developer", "user", "assistant", "tool"),
    "response_format.type": ("text", "json_object", "json_schema"),
    "tool_choice": ("auto", "none", "required", "an object"),
    "logprobs": ("false",),
}
_decoder = msgspec.json.Decoder(Create)


def decode(body: bytes) -> Create:
    """Raises BadFrame."""
    return decoded(_decoder, body, "body", _CHOICES)

"""Requests of `POST /v1/messages`. Keys that are not listed are ignored; null counts as absent."""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from continuo.realtime import limits
from continuo.realtime.protocol.sampling import BoundedText, ItemId
from continuo.realtime.protocol.validation import AllowedValues, decode_json

T = TypeVar("T")
ToolName = Annotated[str, Meta(min_length=1, max_length=limits.FUNCTION_NAME_CHARS_MAX)]


class ResultBlock(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: BoundedText | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Content block of any type; `type` decides which keys are required."""

    type: str
    text: BoundedText | None = None
    id: ItemId | None = None
    name: ToolName | None = None
    input: dict[str, object] | None = None
    tool_use_id: ItemId | None = None
    content: (
        BoundedText | Annotated[list[ResultBlock], Meta(max_length=limits.PARTS_MAX)] | None
    ) = None


Content = BoundedText | Annotated[list[Block], Meta(max_length=limits.PARTS_MAX)]


class MessageIn(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: Content


class ToolIn(msgspec.Struct, frozen=True, kw_only=True):
    """Tool of a request. Tools of Anthropic's servers, which have another `type`, are ignored."""

    name: ToolName
    type: str | None = None
    description: BoundedText | None = None
    input_schema: dict[str, object] | None = None
    strict: bool | None = None

    @property
    def parameters(self) -> dict[str, object] | None:
        return self.input_schema


class ToolChoiceIn(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormatIn(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, object]


class OutputConfigIn(msgspec.Struct, frozen=True, kw_only=True):
    """`effort` is advice, and has no effect."""

    format: OutputFormatIn | None = None


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/messages/count_tokens`."""

    messages: Annotated[
        list[MessageIn], Meta(min_length=1, max_length=limits.RESPONSES_INPUT_ITEMS_MAX)
    ]
    model: str | None = None
    system: Content | None = None
    tools: Annotated[list[ToolIn], Meta(max_length=limits.TOOLS_MAX)] | None = None
    tool_choice: ToolChoiceIn | None = None
    output_config: OutputConfigIn | None = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)]
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    stop_sequences: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=16)]
        | None
    ) = None
    stream: bool | None = None


_ALLOWED_VALUES: AllowedValues = {
    "messages[].role": ("user", "assistant", "system"),
    "output_config.format.type": ("json_schema",),
    "tool_choice.type": ("auto", "any", "tool", "none"),
}


def decode_body(body: bytes, kind: type[T]) -> T:
    """Decode the body of a request. Raises BadFrame."""
    return decode_json(msgspec.json.Decoder(kind), body, "body", _ALLOWED_VALUES)

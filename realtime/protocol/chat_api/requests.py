"""Requests of `POST /v1/chat/completions`. Keys that are not listed are ignored; null counts as
absent."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from continuo.engine import Effort
from continuo.realtime import limits
from continuo.realtime.protocol.reasoning import ReasoningTokens, TemplateOptions
from continuo.realtime.protocol.sampling import (
    BoundedText,
    ItemId,
    LogitBias,
    SamplingIn,
    TopLogprobs,
)
from continuo.realtime.protocol.validation import AllowedValues, decode_json

ToolName = Annotated[str, Meta(min_length=1, max_length=limits.FUNCTION_NAME_CHARS_MAX)]
MaxTokens = Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)]


class PartIn(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: BoundedText | None = None
    refusal: BoundedText | None = None


JsonSchemaIn = dict[str, object] | BoundedText
Regex = Annotated[str, Meta(min_length=1, max_length=limits.TEXT_CHARS_MAX)]
Choices = Annotated[list[BoundedText], Meta(min_length=1, max_length=limits.PARTS_MAX)]


class FunctionCallIn(msgspec.Struct, frozen=True, kw_only=True):
    name: ToolName
    arguments: BoundedText


class ToolCallIn(msgspec.Struct, frozen=True, kw_only=True):
    id: ItemId
    function: FunctionCallIn


class MessageIn(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: BoundedText | Annotated[list[PartIn], Meta(max_length=limits.PARTS_MAX)] | None = None
    tool_calls: Annotated[list[ToolCallIn], Meta(max_length=limits.PARTS_MAX)] | None = None
    tool_call_id: ItemId | None = None
    reasoning_content: BoundedText | None = None
    """Extension, as in vLLM: what the assistant reasoned before this message."""
    reasoning: BoundedText | None = None
    """Another name of `reasoning_content`."""


class FunctionIn(msgspec.Struct, frozen=True, kw_only=True):
    name: ToolName
    description: BoundedText | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class ToolIn(msgspec.Struct, frozen=True, kw_only=True):
    """Tool of a request. `custom` is refused; other kinds than `function` are ignored."""

    type: str = "function"
    function: FunctionIn | None = None


class FunctionNameIn(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class ToolChoiceIn(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    function: FunctionNameIn | None = None


class SchemaIn(msgspec.Struct, frozen=True, kw_only=True):
    name: ToolName
    schema: dict[str, object] | None = None
    strict: bool | None = None


class FormatIn(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaIn | None = None
    schema: dict[str, object] | None = None
    """Of the type `json_object`, as llama-server has it."""


class StructuredOutputsIn(msgspec.Struct, frozen=True, kw_only=True):
    """As in vLLM. `grammar` and `structural_tag` are refused."""

    json: JsonSchemaIn | None = None
    regex: Regex | None = None
    choice: Choices | None = None
    grammar: object = None
    json_object: bool | None = None
    structural_tag: object = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None


class ChatCompletionRequest(SamplingIn, frozen=True, kw_only=True):
    messages: Annotated[
        list[MessageIn], Meta(min_length=1, max_length=limits.RESPONSES_INPUT_ITEMS_MAX)
    ]
    model: str | None = None
    tools: Annotated[list[ToolIn], Meta(max_length=limits.TOOLS_MAX)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: MaxTokens | None = None
    max_tokens: MaxTokens | None = None
    """Older name of `max_completion_tokens`."""
    response_format: FormatIn | None = None
    structured_outputs: StructuredOutputsIn | None = None
    guided_json: JsonSchemaIn | None = None
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None
    guided_grammar: object = None
    """Extensions, as in vLLM, which had the last four before `structured_outputs`."""
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    thinking_token_budget: ReasoningTokens | None = None
    """Extensions, as in vLLM and DashScope: whether and how much the model reasons, and the maximum
    number of tokens of its reasoning."""
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    logit_bias: LogitBias | None = None
    modalities: list[str] | None = None
    functions: list[object] | None = None
    """Refused, with `function_call`: what `tools` was called before."""
    function_call: object = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


_ALLOWED_VALUES: AllowedValues = {
    "messages[].role": ("system", "developer", "user", "assistant", "tool"),
    "response_format.type": ("text", "json_object", "json_schema"),
    "tool_choice": ("auto", "none", "required", "an object"),
}
_decoder = msgspec.json.Decoder(ChatCompletionRequest)


def decode_body(body: bytes) -> ChatCompletionRequest:
    """Decode the body of a request. Raises BadFrame."""
    return decode_json(_decoder, body, "body", _ALLOWED_VALUES)

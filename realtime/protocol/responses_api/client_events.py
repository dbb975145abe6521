"""Client events of the Responses API: `response.create`, which is also the body of
`POST /v1/responses`, and two that exist only on the WebSocket.

Keys that are not listed are ignored, at every level of an event; null counts as absent.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from continuo.realtime import limits
from continuo.realtime.protocol.reasoning import ReasoningIn, TemplateOptions
from continuo.realtime.protocol.sampling import (
    BoundedText,
    ItemId,
    Metadata,
    SamplingIn,
    TopLogprobs,
)
from continuo.realtime.protocol.validation import list_tags

StreamId = Annotated[str, Meta(min_length=1, max_length=limits.STREAM_ID_CHARS_MAX)]
ToolName = Annotated[str, Meta(min_length=1, max_length=limits.FUNCTION_NAME_CHARS_MAX)]
ResponseId = Annotated[str, Meta(min_length=1, max_length=limits.ITEM_ID_CHARS_MAX)]
ConversationId = Annotated[str, Meta(min_length=1, max_length=limits.ITEM_ID_CHARS_MAX)]


class PartIn(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: BoundedText | None = None
    refusal: BoundedText | None = None


Content = BoundedText | Annotated[list[PartIn], Meta(max_length=limits.PARTS_MAX)]


class ItemIn(msgspec.Struct, frozen=True, kw_only=True):
    """Item of any type; `type` decides which keys are required. A message may omit `type`."""

    type: str = "message"
    id: ItemId | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Content | None = None
    call_id: ItemId | None = None
    name: ToolName | None = None
    arguments: BoundedText | None = None
    output: Content | None = None


Input = BoundedText | Annotated[list[ItemIn], Meta(max_length=limits.RESPONSES_INPUT_ITEMS_MAX)]


class ConversationIn(msgspec.Struct, frozen=True, kw_only=True):
    id: ConversationId


class ToolIn(msgspec.Struct, frozen=True, kw_only=True):
    """Tool of a request. `custom` is refused; other kinds than `function` are ignored."""

    type: str = "function"
    name: ToolName | None = None
    description: BoundedText | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class ToolChoiceIn(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None


class FormatIn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: ToolName | None = None
    description: BoundedText | None = None
    schema: dict[str, object] | None = None
    strict: bool | None = None


class TextIn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: FormatIn | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


INCLUDE_LOGPROBS = "message.output_text.logprobs"
_NULL = msgspec.Raw(b"null")


class ResponseCreate(SamplingIn, frozen=True, kw_only=True, tag="response.create"):
    """Create a response. Keys typed `Raw` are unsupported: any value but null is refused."""

    model: str | None = None
    input: Input | None = None
    instructions: BoundedText | None = None
    tools: Annotated[list[ToolIn], Meta(max_length=limits.TOOLS_MAX)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceIn | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: ResponseId | None = None
    store: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)] | None = None
    metadata: Metadata | None = None
    text: TextIn | None = None
    reasoning: ReasoningIn | None = None
    enable_thinking: bool | None = None
    """Extension: whether the model reasons."""
    chat_template_kwargs: TemplateOptions | None = None
    """Extension, as in vLLM."""
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    background: bool | None = None
    include: Annotated[list[str], Meta(max_length=limits.PARTS_MAX)] | None = None
    """Parts to include in the response; only INCLUDE_LOGPROBS has an effect."""
    top_logprobs: TopLogprobs | None = None
    generate: bool | None = None
    """If false, the prompt is only prefilled. WebSocket only."""
    stream_id: StreamId | None = None
    """Name of the stream queue. WebSocket only."""
    conversation: ConversationId | ConversationIn | None = None
    prompt: msgspec.Raw = _NULL


class ResponseSteer(msgspec.Struct, frozen=True, kw_only=True, tag="response.steer"):
    """Steer a running response. `input` is an `Input` of user messages, kept raw because it is
    returned unchanged if it cannot be used."""

    previous_response_id: ResponseId
    input: msgspec.Raw


class ResponseCancel(msgspec.Struct, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: ResponseId | None = None


ClientEvent = ResponseCreate | ResponseSteer | ResponseCancel
EVENT_TYPES = list_tags(ClientEvent)
ITEM_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "item_reference",
    "reasoning",
)

"""The client events, their required and optional fields and the bounds of each.

Keys that are not listed are ignored, at every level of an event. Listed keys that a text server has
no use for are typed `object` and accepted with any value. Where a key may be null, null means
the default in `session.update`, and the session's value in `response.create`.

"Extension" marks keys and events that OpenAI's API does not have.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from continuo.realtime import limits
from continuo.realtime.protocol.reasoning import ReasoningIn, TemplateOptions
from continuo.realtime.protocol.sampling import (
    BoundedName,
    BoundedText,
    ItemId,
    Metadata,
    SamplingIn,
)
from continuo.realtime.protocol.validation import list_tags

ClientEventId = Annotated[str, Meta(max_length=limits.EVENT_ID_CHARS_MAX)]


# ---------------------------------------------------------------- in session and response


class ToolIn(msgspec.Struct, frozen=True):
    """Tool of a session or response. Kinds other than `function` are accepted and ignored."""

    type: str = "function"
    name: BoundedName | None = None
    description: BoundedText | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    """Extension, as in the Responses API: calls must follow the schema."""


class ToolChoiceIn(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None


class GenerationSettingsIn(SamplingIn, frozen=True, kw_only=True):
    """Settings of a session or of a single response. The sampling parameters are an extension."""

    instructions: BoundedText | UnsetType | None = UNSET
    tools: Annotated[list[ToolIn], Meta(max_length=limits.TOOLS_MAX)] | UnsetType | None = UNSET
    tool_choice: Literal["auto", "none", "required"] | ToolChoiceIn | UnsetType | None = UNSET
    max_output_tokens: (
        Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)] | Literal["inf"] | UnsetType | None
    ) = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    output_modalities: list[Literal["text", "audio"]] | UnsetType | None = UNSET
    audio: object = None
    prompt: object = None
    reasoning: ReasoningIn | UnsetType | None = UNSET
    enable_thinking: bool | UnsetType | None = UNSET
    """Extension: whether the model reasons."""
    chat_template_kwargs: TemplateOptions | UnsetType | None = UNSET
    """Extension, as in vLLM; null changes nothing."""


class TokenLimitsIn(msgspec.Struct, frozen=True):
    post_instructions: Annotated[int, Meta(ge=0, le=limits.OUTPUT_TOKENS_MAX)] | None = None


class RetentionIn(msgspec.Struct, frozen=True, kw_only=True, tag="retention_ratio"):
    retention_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.8
    token_limits: TokenLimitsIn | None = None


class SessionIn(GenerationSettingsIn, frozen=True, kw_only=True):
    type: Literal["realtime"]
    model: object = None
    include: object = UNSET
    """Extension: a list of events to send as well: `response.interrupted`, when the engine is lost
    during a response, `session.continuity`, when the store has lost its data, and
    `response.reasoning_text`; other values are accepted and ignored."""
    tracing: object = None
    truncation: Literal["auto", "disabled"] | RetentionIn | UnsetType | None = UNSET


# ---------------------------------------------------------------- items


class PartIn(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal[
        "input_text", "output_text", "text", "input_audio", "output_audio", "audio", "input_image"
    ]
    text: BoundedText | None = None
    transcript: BoundedText | None = None
    audio: object = None
    image_url: object = None


class MessageIn(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: ItemId | None = None
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[PartIn], Meta(max_length=limits.PARTS_MAX)]


class FunctionCallIn(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    id: ItemId | None = None
    call_id: ItemId | None = None
    name: BoundedName
    arguments: BoundedText


class FunctionCallOutputIn(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    id: ItemId | None = None
    call_id: ItemId
    output: BoundedText


class ItemReferenceIn(msgspec.Struct, frozen=True, kw_only=True, tag="item_reference"):
    id: ItemId


ItemIn = MessageIn | FunctionCallIn | FunctionCallOutputIn


class ResponseIn(GenerationSettingsIn, frozen=True, kw_only=True):
    conversation: str | None = None
    input: (
        Annotated[list[ItemIn | ItemReferenceIn], Meta(max_length=limits.REALTIME_INPUT_ITEMS_MAX)]
        | None
    ) = None
    metadata: Metadata | None = None


# ---------------------------------------------------------------- the events


class ClientEventBase(msgspec.Struct, frozen=True, kw_only=True):
    event_id: ClientEventId | None = None


class SessionUpdate(ClientEventBase, frozen=True, kw_only=True, tag="session.update"):
    session: SessionIn


class ItemCreate(ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.create"):
    item: ItemIn
    previous_item_id: ItemId | None = None


class ItemRetrieve(ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    item_id: ItemId


class ItemTruncate(ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    item_id: ItemId
    content_index: Annotated[int, Meta(ge=0, le=limits.PARTS_MAX)]
    audio_end_ms: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    text_end: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Extension: characters of the text that the user received. This or `audio_end_ms` is
    required."""


class ItemDelete(ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.delete"):
    item_id: ItemId


class ResponseCreate(ClientEventBase, frozen=True, kw_only=True, tag="response.create"):
    response: ResponseIn | None = None


class ResponseCancel(ClientEventBase, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: str | None = None


class AudioAppend(ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    audio: str


class AudioCommit(ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    pass


class AudioClear(ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    pass


class OutputAudioClear(ClientEventBase, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    pass


class TextAppend(ClientEventBase, frozen=True, kw_only=True, tag="input_text_buffer.append"):
    """Extension, like all events of the input text buffer: text that the user is still dictating or
    typing."""

    text: BoundedText


class TextReplace(ClientEventBase, frozen=True, kw_only=True, tag="input_text_buffer.replace"):
    text: BoundedText


class TextClear(ClientEventBase, frozen=True, kw_only=True, tag="input_text_buffer.clear"):
    pass


class TextCommit(ClientEventBase, frozen=True, kw_only=True, tag="input_text_buffer.commit"):
    pass


class SessionClose(ClientEventBase, frozen=True, kw_only=True, tag="session.close"):
    """Extension: close the session, not only the connection."""


ClientEvent = (
    SessionUpdate
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | ResponseCreate
    | ResponseCancel
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputAudioClear
    | TextAppend
    | TextReplace
    | TextClear
    | TextCommit
    | SessionClose
)

EVENT_TYPES = list_tags(ClientEvent)
ITEM_TYPES = list_tags(ItemIn)

"""The server events and the objects in them. Each validates against the OpenAI SDK's own types.

"Extension" marks keys and events that OpenAI's API does not have.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from continuo.engine import SamplingSettings
from continuo.realtime.errors import ErrorType
from continuo.realtime.protocol.items import ItemRole, ItemStatus
from continuo.realtime.protocol.reasoning import ReasoningOut
from continuo.realtime.protocol.response import IncompleteReason, KVResidency, ResponseStatus

# ---------------------------------------------------------------- items


class PartOut(msgspec.Struct, frozen=True, kw_only=True):
    """Content part. `type` is "text" in content_part events, and one of the other three in
    items."""

    type: Literal["input_text", "output_text", "input_audio", "text"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


class MessageOut(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus
    role: ItemRole
    content: list[PartOut]


class FunctionCallOut(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    id: str
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class FunctionCallOutputOut(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    id: str
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus
    call_id: str
    output: str


ItemOut = MessageOut | FunctionCallOut | FunctionCallOutputOut


# ---------------------------------------------------------------- session


class ToolOut(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    name: str
    description: str | UnsetType = UNSET
    parameters: msgspec.Raw
    strict: bool | UnsetType = UNSET


class ToolChoiceOut(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    name: str


class AudioFormat(msgspec.Struct, frozen=True, kw_only=True, tag="audio/pcm"):
    rate: int = 24_000


class InputAudioOut(msgspec.Struct, frozen=True, kw_only=True):
    """Input audio settings of a text server: null except the format. If a client's `turn_detection`
    were reported as requested, the client would rely on the server to interrupt responses."""

    format: AudioFormat = AudioFormat()
    transcription: None = None
    noise_reduction: None = None
    turn_detection: None = None


class OutputAudioOut(msgspec.Struct, frozen=True, kw_only=True):
    format: AudioFormat = AudioFormat()
    voice: str = "alloy"


class SessionAudioOut(msgspec.Struct, frozen=True, kw_only=True):
    input: InputAudioOut = InputAudioOut()
    output: OutputAudioOut = OutputAudioOut()


class TokenLimitsOut(msgspec.Struct, frozen=True, kw_only=True):
    post_instructions: int


class RetentionOut(msgspec.Struct, frozen=True, kw_only=True, tag="retention_ratio"):
    retention_ratio: float
    token_limits: TokenLimitsOut | UnsetType = UNSET


class ResumeOut(msgspec.Struct, frozen=True, kw_only=True):
    """Extension: data with which a client can resume its session, and how this connection resumed
    the session, if it did. See `ResumeInfo`."""

    session_id: str
    epoch: str
    window_s: float
    expires_at: int
    token: str | UnsetType = UNSET
    resumed: Literal["exact", "snapshot"] | None
    kv: KVResidency


class SessionOut(SamplingSettings, frozen=True, kw_only=True):
    type: Literal["realtime"] = "realtime"
    object: Literal["realtime.session"] = "realtime.session"
    id: str
    model: str
    instructions: str
    tools: list[ToolOut]
    tool_choice: str | ToolChoiceOut
    parallel_tool_calls: bool
    max_output_tokens: int | Literal["inf"]
    output_modalities: list[Literal["text"]]
    audio: SessionAudioOut = SessionAudioOut()
    truncation: Literal["auto", "disabled"] | RetentionOut
    tracing: None = None
    prompt: None = None
    include: list[str] | None = None
    reasoning: ReasoningOut | UnsetType = UNSET
    """Absent if none was asked for."""
    resume: ResumeOut | UnsetType = UNSET


# ---------------------------------------------------------------- response


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    type: ErrorType = "server_error"
    code: str
    message: str


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["cancelled", "incomplete", "failed"]
    reason: IncompleteReason | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET


class CachedDetails(msgspec.Struct, frozen=True, kw_only=True):
    text_tokens: int
    audio_tokens: int = 0
    image_tokens: int = 0


class InputDetails(msgspec.Struct, frozen=True, kw_only=True):
    text_tokens: int
    audio_tokens: int = 0
    image_tokens: int = 0
    cached_tokens: int
    cached_tokens_details: CachedDetails
    prefilled_after_commit: int
    """Extension: tokens that were computed after the response was requested; the others were known
    or computed before."""


class OutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    text_tokens: int
    audio_tokens: int = 0
    reasoning_tokens: int | UnsetType = UNSET
    """Extension: tokens of the reasoning, which `text_tokens` includes. Absent if there are
    none."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Extension: times of a response, in seconds. `queued_s`: from the request to its first step;
    `prefill_s`: from that step to the first output token; `model_s`: computation of the device, for
    any session, from the request to the end."""

    queued_s: float
    prefill_s: float
    model_s: float


class UsageOut(msgspec.Struct, frozen=True, kw_only=True):
    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputDetails
    output_token_details: OutputDetails
    timing: Timing
    residency: KVResidency
    """Extension: place where the KV of the prompt was found."""


class ResponseAudioOut(msgspec.Struct, frozen=True, kw_only=True):
    output: OutputAudioOut = OutputAudioOut()


class ResponseOut(SamplingSettings, frozen=True, kw_only=True):
    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: ResponseStatus
    status_details: StatusDetails | None
    output: list[ItemOut]
    conversation_id: str | None
    output_modalities: list[Literal["text"]]
    max_output_tokens: int | Literal["inf"]
    audio: ResponseAudioOut = ResponseAudioOut()
    usage: UsageOut | None
    metadata: dict[str, str] | None


# ---------------------------------------------------------------- the events


class ServerEventBase(msgspec.Struct, frozen=True, kw_only=True):
    event_id: str


class SessionCreated(ServerEventBase, frozen=True, kw_only=True, tag="session.created"):
    session: SessionOut


class RewindOut(msgspec.Struct, frozen=True, kw_only=True):
    """Extension, sent if an edit invalidates KV: the number of leading tokens that keep their KV,
    and the number of tokens after them that must be prefilled."""

    kept_tokens: int
    prefill_tokens: int


class SessionUpdated(ServerEventBase, frozen=True, kw_only=True, tag="session.updated"):
    session: SessionOut
    rewind: RewindOut | UnsetType = UNSET


class ItemAdded(ServerEventBase, frozen=True, kw_only=True, tag="conversation.item.added"):
    previous_item_id: str | None
    item: ItemOut
    rewind: RewindOut | UnsetType = UNSET


class ItemDone(ServerEventBase, frozen=True, kw_only=True, tag="conversation.item.done"):
    previous_item_id: str | None
    item: ItemOut


class ItemRetrieved(ServerEventBase, frozen=True, kw_only=True, tag="conversation.item.retrieved"):
    item: ItemOut


class ItemDeleted(ServerEventBase, frozen=True, kw_only=True, tag="conversation.item.deleted"):
    item_id: str
    rewind: RewindOut | UnsetType = UNSET


class ItemTruncated(ServerEventBase, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int
    text_end: int | UnsetType = UNSET
    """Extension: the `text_end` of the client's event, if it had one."""
    rewind: RewindOut | UnsetType = UNSET


class ResponseCreated(ServerEventBase, frozen=True, kw_only=True, tag="response.created"):
    response: ResponseOut


class ResponseDone(ServerEventBase, frozen=True, kw_only=True, tag="response.done"):
    response: ResponseOut


class OutputItemAdded(ServerEventBase, frozen=True, kw_only=True, tag="response.output_item.added"):
    response_id: str
    output_index: int
    item: ItemOut


class OutputItemDone(ServerEventBase, frozen=True, kw_only=True, tag="response.output_item.done"):
    response_id: str
    output_index: int
    item: ItemOut


class ContentPartAdded(
    ServerEventBase, frozen=True, kw_only=True, tag="response.content_part.added"
):
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    part: PartOut


class ContentPartDone(ServerEventBase, frozen=True, kw_only=True, tag="response.content_part.done"):
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    part: PartOut


class TextDelta(
    ServerEventBase, frozen=True, gc=False, kw_only=True, tag="response.output_text.delta"
):
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: str


class TextDone(ServerEventBase, frozen=True, kw_only=True, tag="response.output_text.done"):
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    text: str


class ReasoningTextDelta(
    ServerEventBase, frozen=True, gc=False, kw_only=True, tag="response.reasoning_text.delta"
):
    """Extension, like `response.reasoning_text.done`, for sessions whose `include` lists
    `response.reasoning_text`. Reasoning is no item of the conversation here."""

    response_id: str
    item_id: str
    delta: str


class ReasoningTextDone(
    ServerEventBase, frozen=True, kw_only=True, tag="response.reasoning_text.done"
):
    response_id: str
    item_id: str
    text: str


class ArgumentsDelta(
    ServerEventBase, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    delta: str


class ArgumentsDone(
    ServerEventBase, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    name: str
    arguments: str


class ResponseInterrupted(ServerEventBase, frozen=True, kw_only=True, tag="response.interrupted"):
    """Extension, for sessions whose `include` lists it: the engine was lost; generation resumes
    soon."""

    response_id: str
    item_id: str | None
    """Id of the item that was being generated, or null."""
    upto: int
    """Characters (code points) of the item `item_id` that were sent; the next delta follows
    them."""


class RateLimitOut(msgspec.Struct, frozen=True, kw_only=True):
    name: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(ServerEventBase, frozen=True, kw_only=True, tag="rate_limits.updated"):
    rate_limits: list[RateLimitOut]


class AudioCleared(ServerEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    pass


class TextAppended(ServerEventBase, frozen=True, kw_only=True, tag="input_text_buffer.appended"):
    """Extension, like all events of the input text buffer: sent only to clients that use the
    buffer."""

    length: int
    """Length of the buffer after the change, in characters."""


class TextCleared(ServerEventBase, frozen=True, kw_only=True, tag="input_text_buffer.cleared"):
    pass


class TextCommitted(ServerEventBase, frozen=True, kw_only=True, tag="input_text_buffer.committed"):
    item_id: str
    previous_item_id: str | None


class SessionClosed(ServerEventBase, frozen=True, kw_only=True, tag="session.closed"):
    """Extension: the session is closed; sent only in reply to `session.close`."""

    reason: str


class SessionContinuity(ServerEventBase, frozen=True, kw_only=True, tag="session.continuity"):
    """Extension, for sessions whose `include` lists it: the store has lost its data, and the
    session was written again, or could not be."""

    status: Literal["restored", "lost"]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: ErrorType
    code: str
    message: str
    param: str | None
    event_id: str | None


class Error(ServerEventBase, frozen=True, kw_only=True, tag="error"):
    error: ErrorBody


ServerEvent = (
    SessionCreated
    | SessionUpdated
    | ItemAdded
    | ItemDone
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | ResponseCreated
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | TextDelta
    | TextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | ResponseInterrupted
    | RateLimitsUpdated
    | AudioCleared
    | TextAppended
    | TextCleared
    | TextCommitted
    | SessionClosed
    | SessionContinuity
    | Error
)

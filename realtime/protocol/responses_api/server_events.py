"""The server events and the objects in them. Each validates against the OpenAI SDK's own types.

`sequence_number` counts the events of one response from 0; `stream_id` names its stream queue, if
it has one. Over HTTP the events are the same.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.errors import ErrorType
from continuo.realtime.protocol.encoded_array import EMPTY_ARRAY
from continuo.realtime.protocol.items import ItemRole, ItemStatus
from continuo.realtime.protocol.reasoning import ReasoningOut
from continuo.realtime.protocol.response import KVResidency
from continuo.realtime.protocol.token_logprobs import EncodedLogprobs

ResponseStatusOut = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

# ---------------------------------------------------------------- items


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    text: str
    annotations: list[object] = []
    logprobs: EncodedLogprobs = EMPTY_ARRAY
    """Array of `TokenLogprobOut`."""


class InputPart(msgspec.Struct, frozen=True, kw_only=True, tag="input_text"):
    text: str


class MessageOut(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    status: ItemStatus
    role: ItemRole
    content: list[TextPart | InputPart]


class FunctionCallOut(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningTextPart(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    text: str


class ReasoningItemOut(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[object] = []
    content: list[ReasoningTextPart]


class FunctionCallOutputOut(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    id: str
    status: ItemStatus
    call_id: str
    output: str


ItemOut = MessageOut | FunctionCallOut | ReasoningItemOut
InputItemOut = ItemOut | FunctionCallOutputOut


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of items."""

    object: Literal["list"] = "list"
    data: list[InputItemOut]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


# ---------------------------------------------------------------- response


class ToolOut(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    name: str
    description: str | None
    parameters: msgspec.Raw
    strict: bool


class ToolChoiceOut(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    name: str


class InputDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    queued_s: float
    prefill_s: float
    model_s: float


class UsageOut(msgspec.Struct, frozen=True, kw_only=True):
    """Token usage. `timing` and `residency` are extensions, as in the Realtime API."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int
    timing: Timing
    residency: KVResidency


class ErrorOut(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class Reasoning(ReasoningOut, frozen=True, kw_only=True):
    summary: None = None


class ConversationRef(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class ResponseOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    access_programs: None = None
    created_at: int
    completed_at: int | None = None
    conversation: ConversationRef | UnsetType = UNSET
    status: ResponseStatusOut
    background: bool
    error: ErrorOut | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[ItemOut]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Reasoning = Reasoning()
    store: bool
    temperature: float
    text: msgspec.Raw
    tool_choice: str | ToolChoiceOut
    tools: list[ToolOut]
    top_logprobs: int | UnsetType = UNSET
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: UsageOut | None
    metadata: dict[str, str]


# ---------------------------------------------------------------- the events


class ServerEventBase(msgspec.Struct, frozen=True, kw_only=True):
    sequence_number: int
    stream_id: str | UnsetType = UNSET


class ResponseCreated(ServerEventBase, frozen=True, kw_only=True, tag="response.created"):
    response: ResponseOut


class ResponseInProgress(ServerEventBase, frozen=True, kw_only=True, tag="response.in_progress"):
    response: ResponseOut


class ResponseCompleted(ServerEventBase, frozen=True, kw_only=True, tag="response.completed"):
    response: ResponseOut


class ResponseIncomplete(ServerEventBase, frozen=True, kw_only=True, tag="response.incomplete"):
    response: ResponseOut


class ResponseFailed(ServerEventBase, frozen=True, kw_only=True, tag="response.failed"):
    response: ResponseOut


class OutputItemAdded(ServerEventBase, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: ItemOut


class OutputItemDone(ServerEventBase, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: ItemOut


class ContentPartAdded(
    ServerEventBase, frozen=True, kw_only=True, tag="response.content_part.added"
):
    item_id: str
    output_index: int
    content_index: int = 0
    part: TextPart | ReasoningTextPart


class ContentPartDone(ServerEventBase, frozen=True, kw_only=True, tag="response.content_part.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    part: TextPart | ReasoningTextPart


class TextDelta(ServerEventBase, frozen=True, kw_only=True, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: EncodedLogprobs = EMPTY_ARRAY
    """Array of `TokenLogprobOut`."""


class TextDone(ServerEventBase, frozen=True, kw_only=True, tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: EncodedLogprobs = EMPTY_ARRAY
    """Array of `TokenLogprobOut`."""


class ReasoningTextDelta(
    ServerEventBase, frozen=True, kw_only=True, tag="response.reasoning_text.delta"
):
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningTextDone(
    ServerEventBase, frozen=True, kw_only=True, tag="response.reasoning_text.done"
):
    item_id: str
    output_index: int
    content_index: int = 0
    text: str


_ARGUMENTS = "response.function_call_arguments"


class ArgumentsDelta(ServerEventBase, frozen=True, kw_only=True, tag=f"{_ARGUMENTS}.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(ServerEventBase, frozen=True, kw_only=True, tag=f"{_ARGUMENTS}.done"):
    item_id: str
    output_index: int
    name: str
    arguments: str


class SteerOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    previous_response_id: str


class SteerAccepted(ServerEventBase, frozen=True, kw_only=True, tag="response.steer.accepted"):
    steer: SteerOut


class RequiredFunctionOutput(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    """A call of a function whose output the client must send before the response can continue."""

    call_id: str
    name: str


class SteerPending(ServerEventBase, frozen=True, kw_only=True, tag="response.steer.pending"):
    steer: SteerOut
    reason: Literal["waiting_for_required_input"] = "waiting_for_required_input"
    required_input: list[RequiredFunctionOutput]


class ReturnedSteer(msgspec.Struct, frozen=True, kw_only=True):
    previous_response_id: str
    input: msgspec.Raw
    id: str | UnsetType = UNSET


class SteerError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class SteerFailed(ServerEventBase, frozen=True, kw_only=True, tag="response.steer.failed"):
    steer: ReturnedSteer
    error: SteerError


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: ErrorType
    code: str
    message: str
    param: str | None


class Error(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Refusal of a request on a connection; no response was started."""

    status: int
    error: ErrorBody
    stream_id: str | UnsetType = UNSET


ResponseStreamEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
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
    | SteerAccepted
)
ServerEvent = ResponseStreamEvent | SteerPending | SteerFailed | Error

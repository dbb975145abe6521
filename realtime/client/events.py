"""Events of the wire: OpenAI's Realtime events for text, and Continuo's extensions.

Only the fields that a client needs are typed; servers may send more. Client events are plain
dictionaries, because a server accepts more of them than a client needs to build.
"""

from typing import Any, Literal

import msgspec

JsonObject = dict[str, Any]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
KVResidency = Literal["hot", "host", "recomputed", "none", "unknown"]

# ---------------------------------------------------------------- items


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    text: str | None = None
    transcript: str | None = None


class Message(msgspec.Struct, kw_only=True, tag_field="type", tag="message", omit_defaults=True):
    id: str
    role: Literal["system", "user", "assistant"]
    content: list[ContentPart]
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        return "".join(part.text or part.transcript or "" for part in self.content)


class FunctionCall(
    msgspec.Struct, kw_only=True, tag_field="type", tag="function_call", omit_defaults=True
):
    id: str
    call_id: str
    name: str
    arguments: str
    """JSON text as the model generated it."""
    status: ItemStatus | None = None


class FunctionCallOutput(
    msgspec.Struct, kw_only=True, tag_field="type", tag="function_call_output", omit_defaults=True
):
    id: str
    call_id: str
    output: str
    status: ItemStatus | None = None


Item = Message | FunctionCall | FunctionCallOutput

# ---------------------------------------------------------------- session and response


class ResumeInfo(msgspec.Struct, kw_only=True):
    """How a session was resumed, and what resumes it again."""

    session_id: str
    resumed: Literal["exact", "snapshot"] | None = None
    kv: KVResidency | None = None
    token: str | None = None
    window_s: float | None = None
    """Seconds for which a session without a connection can be resumed."""


class InputDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0
    prefilled_after_commit: int = 0


class Timing(msgspec.Struct, kw_only=True):
    queued_s: float = 0.0
    prefill_s: float = 0.0
    model_s: float = 0.0


class Usage(msgspec.Struct, kw_only=True):
    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: InputDetails = msgspec.field(default_factory=InputDetails)
    timing: Timing | None = None
    residency: KVResidency | None = None

    @property
    def cached_tokens(self) -> int:
        """Input tokens that were not computed since the last response."""
        return self.input_token_details.cached_tokens

    @property
    def prefilled_after_commit(self) -> int:
        """Input tokens that were computed after the response was requested; the others were known
        or computed before."""
        return self.input_token_details.prefilled_after_commit


class ResponseError(msgspec.Struct, kw_only=True):
    message: str = ""
    code: str | None = None


class StatusDetails(msgspec.Struct, kw_only=True):
    reason: str | None = None
    error: ResponseError | None = None


class Response(msgspec.Struct, kw_only=True):
    id: str
    status: ResponseStatus
    status_details: StatusDetails | None = None
    output: list[Item] = []
    conversation_id: str | None = None
    """Id of the conversation; None for an out-of-band response."""
    usage: Usage | None = None
    metadata: dict[str, str] | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    message: str = ""
    type: str = ""
    code: str | None = None
    param: str | None = None
    event_id: str | None = None
    """Id of the client event that caused the error."""


class Rewind(msgspec.Struct, kw_only=True):
    """Effect of an edit on the session's KV."""

    kept_tokens: int
    prefill_tokens: int


# ---------------------------------------------------------------- server events


class _Event(msgspec.Struct, kw_only=True, tag_field="type"):
    event_id: str = ""


class SessionCreated(_Event, tag="session.created"):
    session: JsonObject


class SessionUpdated(_Event, tag="session.updated"):
    session: JsonObject
    rewind: Rewind | None = None


class SessionClosed(_Event, tag="session.closed"):
    reason: str = ""


class SessionContinuity(_Event, tag="session.continuity"):
    """The store has lost its data: the session was written again, or could not be."""

    status: str


class ItemAdded(_Event, tag="conversation.item.added"):
    item: Item
    previous_item_id: str | None = None
    rewind: Rewind | None = None


class ItemDone(_Event, tag="conversation.item.done"):
    item: Item
    previous_item_id: str | None = None


class ItemRetrieved(_Event, tag="conversation.item.retrieved"):
    item: Item


class ItemDeleted(_Event, tag="conversation.item.deleted"):
    item_id: str
    rewind: Rewind | None = None


class ItemTruncated(_Event, tag="conversation.item.truncated"):
    item_id: str
    content_index: int = 0
    text_end: int | None = None
    rewind: Rewind | None = None


class ResponseCreated(_Event, tag="response.created"):
    response: Response


class ResponseDone(_Event, tag="response.done"):
    response: Response


class ResponseInterrupted(_Event, tag="response.interrupted"):
    """The engine was lost: the next delta follows the first `upto` characters of the item."""

    response_id: str
    item_id: str | None
    upto: int


class OutputItemAdded(_Event, tag="response.output_item.added"):
    response_id: str
    output_index: int
    item: Item


class OutputItemDone(_Event, tag="response.output_item.done"):
    response_id: str
    output_index: int
    item: Item


class TextDelta(_Event, tag="response.output_text.delta"):
    response_id: str
    item_id: str
    content_index: int
    delta: str


class TextDone(_Event, tag="response.output_text.done"):
    response_id: str
    item_id: str
    content_index: int
    text: str


class ReasoningDelta(_Event, tag="response.reasoning_text.delta"):
    response_id: str
    item_id: str
    delta: str


class ArgumentsDelta(_Event, tag="response.function_call_arguments.delta"):
    response_id: str
    item_id: str
    call_id: str
    delta: str


class ArgumentsDone(_Event, tag="response.function_call_arguments.done"):
    response_id: str
    item_id: str
    call_id: str
    arguments: str


class BufferAppended(_Event, tag="input_text_buffer.appended"):
    length: int


class BufferCleared(_Event, tag="input_text_buffer.cleared"):
    pass


class BufferCommitted(_Event, tag="input_text_buffer.committed"):
    item_id: str
    previous_item_id: str | None = None


class ErrorEvent(_Event, tag="error"):
    error: ErrorBody


class OtherEvent(msgspec.Struct, kw_only=True):
    """An event that is not typed here."""

    type: str
    event_id: str = ""
    fields: JsonObject = {}


TypedEvent = (
    SessionCreated
    | SessionUpdated
    | SessionClosed
    | SessionContinuity
    | ItemAdded
    | ItemDone
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | ResponseCreated
    | ResponseDone
    | ResponseInterrupted
    | OutputItemAdded
    | OutputItemDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ArgumentsDelta
    | ArgumentsDone
    | BufferAppended
    | BufferCleared
    | BufferCommitted
    | ErrorEvent
)
ServerEvent = TypedEvent | OtherEvent

_decoder: msgspec.json.Decoder[TypedEvent] = msgspec.json.Decoder(TypedEvent)


def decode_event(frame: str | bytes) -> ServerEvent:
    """Decode a frame of the server. Raises msgspec.DecodeError if it is not an event."""
    try:
        return _decoder.decode(frame)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(frame, type=JsonObject)
        event = msgspec.convert(fields, OtherEvent)
        event.fields = fields
        return event

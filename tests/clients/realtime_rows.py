"""The rows of conformance.md about the events of the Realtime API."""

from tests.clients.rows import Api

EMPTY = "error: input_audio_buffer_commit_empty"
CLIENT_EVENTS: dict[str, tuple[str, ...]] = {
    "session.update": ("session.updated",),
    "conversation.item.create": ("conversation.item.added", "conversation.item.done"),
    "conversation.item.retrieve": ("conversation.item.retrieved",),
    "conversation.item.truncate": ("conversation.item.truncated",),
    "conversation.item.delete": ("conversation.item.deleted",),
    "response.create": ("response.created", "response.done"),
    "response.cancel": ("response.done: cancelled",),
    "input_audio_buffer.append": ("error: audio_not_supported",),
    "input_audio_buffer.commit": (EMPTY,),
    "input_audio_buffer.clear": ("input_audio_buffer.cleared",),
    "output_audio_buffer.clear": (),
    "input_text_buffer.append": ("input_text_buffer.appended",),
    "input_text_buffer.replace": ("input_text_buffer.appended",),
    "input_text_buffer.clear": ("input_text_buffer.cleared",),
    "input_text_buffer.commit": ("input_text_buffer.committed", "conversation.item.added"),
    "session.close": ("session.closed", "close 1000"),
}
"""Events of clients, each with the replies that follow somewhere after it."""

_OUTPUT = ("response_id", "output_index")
_PART = ("response_id", "item_id", "output_index", "content_index")
_CALL = ("response_id", "item_id", "output_index", "call_id")
SERVER_EVENTS: dict[str, tuple[str, ...]] = {
    "session.created": ("session.type", "session.id", "session.audio.input.turn_detection: null"),
    "session.updated": ("session.type", "session.id"),
    "conversation.item.added": ("item.id", "item.type", "previous_item_id?"),
    "conversation.item.done": ("item.id", "item.status", "previous_item_id?"),
    "conversation.item.retrieved": ("item.id", "item.content"),
    "conversation.item.deleted": ("item_id",),
    "conversation.item.truncated": ("item_id", "content_index", "audio_end_ms"),
    "response.created": ("response.id", "response.status", "response.output"),
    "response.output_item.added": (*_OUTPUT, "item.id", "item.status"),
    "response.content_part.added": (*_PART, "part.type"),
    "response.output_text.delta": (*_PART, "delta"),
    "response.output_text.done": (*_PART, "text"),
    "response.content_part.done": (*_PART, "part.type", "part.text"),
    "response.function_call_arguments.delta": (*_CALL, "delta"),
    "response.function_call_arguments.done": (*_CALL, "name", "arguments"),
    "response.output_item.done": (*_OUTPUT, "item.id", "item.status"),
    "response.done": (
        *("response.id", "response.object", "response.status", "response.status_details?"),
        *("response.output", "response.metadata?", "response.conversation_id?", "response.audio"),
        *("response.output_modalities", "response.max_output_tokens"),
        *("response.usage.total_tokens", "response.usage.input_tokens"),
        *("response.usage.output_tokens", "response.usage.input_token_details.cached_tokens"),
        "response.usage.input_token_details.cached_tokens_details.text_tokens",
        *("response.usage.output_token_details.text_tokens",),
    ),
    "rate_limits.updated": ("rate_limits",),
    "error": ("error.type", "error.code", "error.message", "error.param?", "error.event_id?"),
}
"""Events of the server, each with the paths of its fields (`rows.find`)."""

REALTIME = Api(
    CLIENT_EVENTS,
    {kind: ("event_id", *fields) for kind, fields in SERVER_EVENTS.items()},
    server_first=True,
)

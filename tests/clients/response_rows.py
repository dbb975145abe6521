"""The rows of conformance.md about the events of the Responses API over a WebSocket."""

from tests.clients.rows import Api

CLIENT_EVENTS: dict[str, tuple[str, ...]] = {
    "response.create": ("response.created", "response.in_progress", "response.completed"),
    "response.cancel": ("response.incomplete: cancelled",),
    "response.steer": ("response.steer.accepted", "response.incomplete: steered"),
}
"""Events of clients, each with the replies that follow somewhere after it."""

_PART = ("item_id", "output_index", "content_index")
_STARTED = (
    *("id", "object", "access_programs: null", "created_at", "status", "model", "output"),
    *("parallel_tool_calls", "tool_choice", "tools", "temperature", "top_p", "metadata"),
    *("instructions?", "previous_response_id?", "store"),
)
_ENDED = (
    *_STARTED,
    *("usage.input_tokens", "usage.output_tokens", "usage.total_tokens"),
    *("usage.input_tokens_details.cached_tokens", "usage.input_tokens_details.cache_write_tokens"),
    "usage.output_tokens_details.reasoning_tokens",
)


def _response(*fields: str) -> tuple[str, ...]:
    return tuple(f"response.{field}" for field in fields)


_RUNNING = _response(*_STARTED, "error: null", "incomplete_details: null", "usage: null")
SERVER_EVENTS: dict[str, tuple[str, ...]] = {
    "response.created": _RUNNING,
    "response.in_progress": _RUNNING,
    "response.output_item.added": ("output_index", "item.id", "item.type"),
    "response.output_item.done": ("output_index", "item.id", "item.type", "item.status"),
    "response.content_part.added": (*_PART, "part.type", "part.text", "part.annotations"),
    "response.content_part.done": (*_PART, "part.type", "part.text", "part.annotations"),
    "response.output_text.delta": (*_PART, "delta", "logprobs"),
    "response.output_text.done": (*_PART, "text", "logprobs"),
    "response.function_call_arguments.delta": ("item_id", "output_index", "delta"),
    "response.function_call_arguments.done": ("item_id", "output_index", "arguments", "name"),
    "response.completed": _response(*_ENDED, "error: null", "incomplete_details: null"),
    "response.incomplete": _response(*_ENDED, "error: null", "incomplete_details.reason"),
    "response.failed": _response(
        *_ENDED, "error.code", "error.message", "incomplete_details: null"
    ),
    "response.steer.accepted": ("steer.id", "steer.previous_response_id"),
    "response.steer.pending": ("steer.id", "steer.previous_response_id", "required_input"),
    "response.steer.failed": ("error.code", "error.message", "steer.input"),
    "error": ("status", "error.type", "error.message", "error.code", "error.param?"),
}
"""Events of the server, each with the paths of its fields (`rows.find`)."""
UNNUMBERED = {"error", "response.steer.failed"}

RESPONSES = Api(
    CLIENT_EVENTS,
    {
        kind: fields if kind in UNNUMBERED else ("sequence_number", *fields)
        for kind, fields in SERVER_EVENTS.items()
    },
    server_first=False,
)

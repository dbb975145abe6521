"""Valid requests of the Responses API and of chat completions, with every key that is read."""

from typing import Any

from tests.fuzz.corpus import SAMPLING, TOOL
from tests.fuzz.endpoints import RESPONSE_ID

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 3}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMED_TOOL: dict[str, Any] = {"type": "function", "name": "get_weather"}
ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": [{"type": "input_text", "text": "hello there"}], "id": "msg_a"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAAA"},
    {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "text", "text": "1"}]},
]
FULL: dict[str, Any] = {
    "model": "demo",
    "input": ITEMS,
    "instructions": "Say yes.",
    "tools": [TOOL, {"type": "web_search"}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "store": True,
    "max_output_tokens": 3,
    "metadata": {"topic": "greeting"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "truncation": "auto",
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "none"},
    **SAMPLING,
}
SHORT: dict[str, Any] = {"input": "hello", "max_output_tokens": 2}
CONTINUED: dict[str, Any] = {**SHORT, "previous_response_id": RESPONSE_ID}
WITH_SCHEMA: dict[str, Any] = {
    **SHORT,
    "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}},
}
WITH_TOOL: dict[str, Any] = {**SHORT, "tools": [TOOL], "tool_choice": NAMED_TOOL}
WITH_REFERENCE: dict[str, Any] = {**CONTINUED, "input": [{"type": "item_reference", "id": "msg_a"}]}
BODIES: tuple[dict[str, Any], ...] = (
    SHORT,
    CONTINUED,
    FULL,
    WITH_REFERENCE,
    WITH_SCHEMA,
    WITH_TOOL,
    {**FULL, "stream": True},
    {**CONTINUED, "stream": True},
    {**WITH_SCHEMA, "stream": True},
    {**SHORT, "background": True},
    {
        **SHORT,
        "type": "response.create",
        "store": False,
        "text": {"format": {"type": "json_object"}},
    },
)
EVENTS: tuple[dict[str, Any], ...] = (
    *({"type": "response.create", **body} for body in BODIES),
    {"type": "response.create", **FULL, "stream_id": "a"},
    {"type": "response.create", **CONTINUED, "stream_id": "b", "store": False},
    {"type": "response.create", **FULL, "generate": False, "stream_id": "a"},
    {"type": "response.create", **SHORT, "max_output_tokens": 60, "stream_id": "c"},
    {"type": "response.steer", "previous_response_id": RESPONSE_ID, "input": "more"},
    {"type": "response.steer", "previous_response_id": RESPONSE_ID, "input": ITEMS[1:2]},
    {"type": "response.cancel", "response_id": RESPONSE_ID},
    {"type": "response.cancel"},
)
FUNCTION: dict[str, Any] = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "hello there"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
]
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": MESSAGES,
    "tools": [{"type": "function", "function": TOOL}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_completion_tokens": 3,
    "response_format": {"type": "text"},
    "n": 1,
    "logprobs": False,
    "stream_options": {"include_usage": True},
    **SAMPLING,
}
SHORT_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
CHATS: tuple[dict[str, Any], ...] = (
    CHAT,
    SHORT_CHAT,
    {**CHAT, "stream": True},
    {**SHORT_CHAT, "stream": True},
    {
        **SHORT_CHAT,
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    },
    {
        **SHORT_CHAT,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
        },
    },
)

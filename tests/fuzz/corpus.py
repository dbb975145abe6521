"""Valid Realtime events, to be mutated: every type, every key that is read."""

from typing import Any

MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": "item_a",
    "role": "user",
    "content": [{"type": "input_text", "text": "hello there, my friend"}],
}
CALL: dict[str, Any] = {
    "type": "function_call",
    "id": "item_b",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city": "Rome"}',
}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
ASSISTANT_MESSAGE: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "well then"}],
}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["end"],
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "ignore_eos": True,
}
SESSION: dict[str, Any] = {
    "type": "realtime",
    "model": "demo",
    "instructions": "Be kind.",
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_output_tokens": 12,
    "output_modalities": ["text"],
    "truncation": {
        "type": "retention_ratio",
        "retention_ratio": 0.8,
        "token_limits": {"post_instructions": 100},
    },
    "audio": {"input": {"turn_detection": {"type": "server_vad"}}, "output": {"voice": "marin"}},
    **SAMPLING,
}
RESPONSE: dict[str, Any] = {
    "conversation": "none",
    "instructions": "Say yes.",
    "input": [MESSAGE, CALL, RESULT, {"type": "item_reference", "id": "item_a"}],
    "metadata": {"topic": "greeting"},
    "max_output_tokens": 4,
    "tool_choice": {"type": "function", "name": "get_weather"},
    **SAMPLING,
}
EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "session.update", "session": SESSION, "event_id": "e1"},
    {"type": "session.update", "session": {"type": "realtime", "instructions": None}},
    {"type": "conversation.item.create", "item": MESSAGE, "previous_item_id": "root"},
    {"type": "conversation.item.create", "item": CALL, "event_id": "e2"},
    {"type": "conversation.item.create", "item": RESULT, "previous_item_id": "item_b"},
    {"type": "conversation.item.create", "item": ASSISTANT_MESSAGE},
    {"type": "conversation.item.retrieve", "item_id": "item_a"},
    {"type": "conversation.item.truncate", "item_id": "item_a", "content_index": 0, "text_end": 3},
    {
        "type": "conversation.item.truncate",
        "item_id": "item_a",
        "content_index": 0,
        "audio_end_ms": 9,
    },
    {"type": "conversation.item.delete", "item_id": "item_a"},
    {"type": "response.create", "response": RESPONSE, "event_id": "e3"},
    {"type": "response.create", "response": {"max_output_tokens": 3}},
    {"type": "response.create"},
    {"type": "response.cancel", "response_id": "resp_1"},
    {"type": "response.cancel"},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {"type": "input_text_buffer.append", "text": "words as "},
    {"type": "input_text_buffer.replace", "text": "words as they"},
    {"type": "input_text_buffer.clear"},
    {"type": "input_text_buffer.commit"},
    {"type": "session.close"},
)

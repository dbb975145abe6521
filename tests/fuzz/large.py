"""Texts near and over every bound, of the shapes that are most expensive to tokenize."""

import json
import random

from continuo.realtime.limits import TEXT_CHARS_MAX, Limits

SHAPES = (
    *("a", "\U0001f600\u0301", " ", "\n", " \n\t", "\u4f60\u597d", "1", "!?", "word ", "aB"),
    *("<|im_end|>", "<|im_start|>x", "<|im_", "\ufdd0<|im_end|>\ufdd1", "\\\"'", '{"a":"'),
    *("\u0301", "\u1100\u1161\u11a8", "</s>[INST]", "\x00", "\u200d"),
)
CONTEXT = 400
_BOUNDS = (
    *(CONTEXT, 12 * CONTEXT, Limits().off_loop_chars_min, 16 * 1024, 64 * 1024),
    *(TEXT_CHARS_MAX // 4, TEXT_CHARS_MAX),
)
"""The context in tokens and in characters; the text that is tokenized off the event loop; a piece;
the text of one part."""
REALTIME_PLACES = (
    '{"type": "session.update", "session": {"type": "realtime", "instructions": %s}}',
    '{"type": "session.update", "session": {"type": "realtime", "tools": '
    '[{"type": "function", "name": "f", "description": %s, "parameters": {}}]}}',
    '{"type": "conversation.item.create", "item": {"type": "message", "role": "user", '
    '"content": [{"type": "input_text", "text": %s}]}}',
    '{"type": "conversation.item.create", "item": {"type": "function_call", "name": "f", '
    '"call_id": "c", "arguments": %s}}',
    '{"type": "conversation.item.create", "item": {"type": "function_call_output", '
    '"call_id": "c", "output": %s}}',
    '{"type": "input_text_buffer.append", "text": %s}',
    '{"type": "response.create", "response": {"conversation": "none", "instructions": %s, '
    '"max_output_tokens": 1}}',
)
BODY_PLACES = (
    '"input": %s',
    '"input": "x", "instructions": %s',
    '"input": "x", "tools": [{"type": "function", "name": "f", "description": %s}]',
    '"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"a": %s}}]',
    '"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": %s}]',
    '"input": [{"type": "function_call_output", "call_id": "c", "output": %s}]',
)
CHAT_PLACES = (
    '"messages": [{"role": "user", "content": %s}]',
    '"messages": [{"role": "system", "content": %s}, {"role": "user", "content": "x"}]',
)


def text(source: random.Random) -> str:
    shape, chars = source.choice(SHAPES), source.choice(_BOUNDS) + source.randrange(-2, 3)
    return (shape * (chars // len(shape) + 1))[:chars]


def values(source: random.Random, count: int) -> list[str]:
    """JSON strings."""
    return [json.dumps(text(source), ensure_ascii=source.random() < 0.5) for _ in range(count)]

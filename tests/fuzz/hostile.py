"""Frames that are expensive or dangerous to parse: depth, size, numbers, keys, text."""

DEPTH = 10_000
MANY = 500_000
"""Elements of two bytes each fill a frame of 1 MiB; a million of them are over the limit."""
NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e-999",
    "-0",
    "-0.0",
    "9" * 400,
    "0." + "3" * 5_000,
    "9" * 1_000_000,
    "18446744073709551616",
    "-9223372036854775809",
    "0x10",
    "1_000",
    "01",
    "+1",
)
PLACES = (
    '{"type": "response.cancel", "x": %s}',
    '{"type": "response.create", "response": {"temperature": %s}}',
    '{"type": "response.create", "response": {"seed": %s}}',
    '{"type": "response.create", "response": {"max_output_tokens": %s}}',
    '{"type": "response.create", "response": {"stop": %s}}',
    '{"type": "response.create", "response": {"metadata": {"n": %s}}}',
    '{"type": "response.create", "response": {"input": %s}}',
    '{"type": "response.create", "response": {"audio": %s}}',
    '{"type": "session.update", "session": {"type": "realtime", "tools": %s}}',
    '{"type": "session.update", "session": {"type": "realtime", "tools": '
    '[{"type": "function", "name": "f", "parameters": {"a": %s}}]}}',
    '{"type": "conversation.item.create", "item": {"type": "message", "role": "user", '
    '"content": %s}}',
    '{"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "text_end": %s}',
    '{"event_id": %s, "type": "session.update"}',
    "%s",
)
"""Places of a value in Realtime events: ignored, typed, kept."""
BODY_PLACES = (
    '"input": "x", "x": %s',
    '"input": %s',
    '"input": [{"role": "user", "content": %s}]',
    '"input": "x", "instructions": %s',
    '"input": "x", "model": %s',
    '"input": "x", "conversation": %s',
    '"input": "x", "previous_response_id": %s',
    '"input": "x", "metadata": {"n": %s}',
    '"input": "x", "tool_choice": %s',
    '"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"a": %s}}]',
    '"input": "x", "text": {"format": {"type": "json_schema", "name": "s", "schema": {"a": %s}}}',
    '"input": "x", "stream_id": %s',
)
"""Places of a value in requests of the Responses API."""
SOCKET_PLACES = (BODY_PLACES[0], BODY_PLACES[1], BODY_PLACES[9], BODY_PLACES[-1])
"""Fewer of them for its WebSocket, which decodes them in the same way."""
CHAT_PLACES = (
    '"x": %s',
    '"messages": %s',
    '"messages": [{"role": "user", "content": %s}]',
    '"messages": [{"role": "assistant", "tool_calls": %s}]',
    '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": %s}}}]',
    '"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"a": %s}}}',
)
"""Places of a value in requests of chat completions."""
OTHER_EVENT_PLACES = (
    '{"type": "response.steer", "previous_response_id": "a", "input": %s}',
    '{"type": "response.cancel", "response_id": %s}',
    "%s",
)
"""Events of the Responses API that create no response."""


def body(place: str) -> str:
    """A request for a short response."""
    return f'{{"max_output_tokens": 1, "store": false, {place}}}'


def chat(place: str) -> str:
    messages = "" if '"messages"' in place else '"messages": [{"role": "user", "content": "x"}], '
    return f'{{"max_tokens": 1, {messages}{place}}}'


def create_event(place: str) -> str:
    return f'{{"type": "response.create", "max_output_tokens": 1, {place}}}'


def values() -> list[str]:
    return [
        *NUMBERS,
        "[" * DEPTH + "]" * DEPTH,
        '{"a":' * DEPTH + "1" + "}" * DEPTH,
        "[" * DEPTH,
        "[" * 300 + "]" * 300,
        '{"a":' * 300 + "1" + "}" * 300,
        "[" + "0," * MANY + "0]",
        "[" + "0," * (2 * MANY) + "0]",
        "[" + "{}," * (MANY * 2 // 3) + "{}]",
        "[" + "[[[]]]," * (MANY // 4) + "0]",
        "[" + '{"a":[{}]},' * (MANY // 6) + "0]",
        '["' + '","' * (MANY * 2 // 3) + '"]',
        *("{" + ",".join(f'"k{n}":{n}' for n in range(keys)) + "}" for keys in (30_000, 60_000)),
        "{" + '"a":1,' * 150_000 + '"a":2}',
        '{"type": "a", "type": "b", "name": "c", "name": "d"}',
        '"' + "a" * 600_000 + '"',
        '"' + " " * 600_000 + '"',
        '"' + "\\u0000" * 1_000 + '"',
        '"\\ud800"',
        '"\\ud83d\\ude00\\udc00"',
        '"' + "\\n" * 100_000 + '"',
        '"' + "\N{ZERO WIDTH JOINER}\N{FAMILY}" * 50_000 + '"',
        '"\\x00"',
        '"' + '\\"event_id\\": ' * 50_000 + '"',
        '"unfinished',
        "nul",
        "true",
        "{",
        "",
    ]


def frames() -> list[str]:
    return [place % value for value in values() for place in PLACES]


LARGE = 12 * 1024 * 1024
"""Bytes; a request may have 16 MiB."""


def large() -> list[str]:
    """Values of a size that only the Responses API and chat completions accept."""
    return [
        "[" + "[[[[[]]]]]," * (LARGE // 11) + "0]",
        "[" + '{"a":[{}]},' * (LARGE // 11) + "0]",
        "[" + "0," * (LARGE // 2) + "0]",
        '["' + '","' * (LARGE // 3) + '"]',
        '"' + "a" * LARGE + '"',
        '"' + ",[" * (LARGE // 2) + '"',
        '"' + '\\"' * (LARGE // 2) + '"',
        '"' + "\N{LATIN SMALL LETTER E WITH ACUTE}" * (LARGE // 2) + '"',
        "9" * LARGE,
        "[" + " " * LARGE + "]",
        "[" * LARGE,
    ]

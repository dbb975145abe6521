"""Decoding of Realtime frames: the error for each kind of bad frame; no input raises another."""

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.errors import BadFrame, Refusal
from continuo.realtime.protocol.realtime_api import (
    client_events,
    decode_command,
    decode_frame,
    extract_event_id,
)
from continuo.realtime.protocol.settings import GenerationSettings

GOOD: dict[str, str] = {
    "session.update": '"session": {"type": "realtime"}',
    "conversation.item.create": '"item": {"type": "message", "role": "user", "content": []}',
    "conversation.item.retrieve": '"item_id": "a"',
    "conversation.item.truncate": '"item_id": "a", "content_index": 0, "audio_end_ms": 0',
    "conversation.item.delete": '"item_id": "a"',
    "response.create": '"response": null',
    "response.cancel": '"response_id": "a"',
    "input_audio_buffer.append": '"audio": "AAAA"',
    "input_audio_buffer.commit": '"x": 1',
    "input_audio_buffer.clear": '"x": 1',
    "output_audio_buffer.clear": '"x": 1',
    "input_text_buffer.append": '"text": "a"',
    "input_text_buffer.replace": '"text": ""',
    "input_text_buffer.clear": '"x": 1',
    "input_text_buffer.commit": '"x": 1',
    "session.close": '"x": 1',
}


@pytest.mark.parametrize("type", client_events.EVENT_TYPES)
def test_every_client_event_of_the_protocol_is_decoded(type: str) -> None:
    event = decode_frame(
        f'{{"event_id": "e", "type": "{type}", {GOOD[type]}, "tomorrow": {{"x": []}}}}'
    )
    assert event.event_id == "e"
    assert decode_frame(f'{{"type": "{type}", "event_id": null, {GOOD[type]}}}').event_id is None
    assert set(GOOD) == set(client_events.EVENT_TYPES)


def session(fields: str) -> str:
    return f'{{"type": "session.update", "event_id": "e1", "session": {{{fields}}}}}'


def item(fields: str) -> str:
    return f'{{"type": "conversation.item.create", "event_id": "e1", "item": {{{fields}}}}}'


def text(length: int) -> str:
    part = json.dumps({"type": "input_text", "text": "x" * length})
    return item(f'"type": "message", "role": "user", "content": [{part}]')


BAD = [
    ("", "invalid_json", None, "JSON"),
    ("{", "invalid_json", None, "JSON"),
    ('{"event_id": "e1", "type": "response.cancel"} x', "invalid_json", None, "trailing"),
    ('{"event_id": "e1", "type": "response.cancel", "x": NaN}', "invalid_json", None, "JSON"),
    (f'{{"event_id": "e1", "x": {"[" * 100_000}', "invalid_json", None, "deep"),
    ("5", "invalid_type", None, "object.*int"),
    ('{"event_id": "e1"}', "missing_required_parameter", "type", "type"),
    ('{"event_id": "e1", "type": 5}', "invalid_type", "type", "str"),
    ('{"event_id": "e1", "type": "x.y"}', "invalid_value", "type", "'x.y'.*'response.create'"),
    ('{"event_id": 5, "type": "response.cancel"}', "invalid_type", "event_id", "int"),
    (
        json.dumps({"event_id": "e" * 513, "type": "response.cancel"}),
        "string_above_max_length",
        "event_id",
        "512",
    ),
    (session('"instructions": "x"'), "missing_required_parameter", "session.type", "session.type"),
    (session('"type": "transcription"'), "invalid_value", "session.type", "'realtime'"),
    (session('"type": "realtime", "temperature": -1'), "decimal_below_min_value", None, ">= 0"),
    (session('"type": "realtime", "temperature": 2.1'), "decimal_above_max_value", None, "<= 2"),
    (session('"type": "realtime", "temperature": 1e999'), "invalid_value", None, "range"),
    (session('"type": "realtime", "top_p": 0'), "decimal_below_min_value", None, "> 0"),
    (session('"type": "realtime", "top_k": 1.5'), "invalid_type", "session.top_k", "int"),
    (session('"type": "realtime", "top_k": -1'), "integer_below_min_value", None, ">= 0"),
    (session('"type": "realtime", "min_p": 1.1'), "decimal_above_max_value", None, "<= 1"),
    (session(f'"type": "realtime", "seed": {10**19}'), "integer_above_max_value", None, "<= 9"),
    (session(f'"type": "realtime", "seed": {"9" * 6000}'), "invalid_value", None, "range"),
    (session('"type": "realtime", "stop": [""]'), "string_below_min_length", None, "1 char"),
    (
        session(f'"type": "realtime", "stop": {json.dumps(["x"] * 17)}'),
        "array_above_max_length",
        "session.stop",
        "16",
    ),
    (
        session('"type": "realtime", "max_output_tokens": 0'),
        "integer_below_min_value",
        "session.max_output_tokens",
        ">= 1",
    ),
    (session('"type": "realtime", "max_output_tokens": "all"'), "invalid_value", None, "'inf'"),
    (session('"type": "realtime", "max_output_tokens": 1e3'), "invalid_type", None, "int"),
    (session('"type": "realtime", "tools": {}'), "invalid_type", "session.tools", "array"),
    (session('"type": "realtime", "tool_choice": "some"'), "invalid_value", None, "'required'"),
    (item('"type": "mcp_call"'), "invalid_value", "item.type", "'function_call'"),
    (item('"type": "message", "role": "user"'), "missing_required_parameter", "item.content", ""),
    (
        item('"type": "message", "role": "tool", "content": []'),
        "invalid_value",
        "item.role",
        "'assistant'",
    ),
    (
        item('"type": "message", "role": "user", "content": [{"type": "text"}, {"type": "x"}]'),
        "invalid_value",
        "item.content[1].type",
        "'input_text'",
    ),
    (
        item('"type": "message", "role": "user", "id": "", "content": []'),
        "string_below_min_length",
        "item.id",
        "1",
    ),
    (text(512 * 1024 + 1), "string_above_max_length", "item.content[0].text", "524288"),
    (
        '{"event_id": "e1", "type": "response.create", "response": {"metadata": {"a": 5}}}',
        "invalid_type",
        "response.metadata[...]",
        "str",
    ),
]


@pytest.mark.parametrize(("frame", "code", "param", "message"), BAD)
def test_bad_frame_is_refused_with_code_and_param(
    frame: str, code: str, param: str | None, message: str
) -> None:
    with pytest.raises(BadFrame) as caught:
        decode_frame(frame)
    refusal = caught.value
    assert refusal.code == code
    assert re.search(message, refusal.message), refusal.message
    if param is not None:
        assert refusal.param == param
        assert param in refusal.message
    if '"e1"' in frame:
        assert refusal.event_id == "e1", "the client cannot match the error with its event"


def test_values_at_their_limit_are_accepted() -> None:
    assert isinstance(decode_frame(text(512 * 1024)), client_events.ItemCreate)
    event = decode_frame(session(f'"type": "realtime", "stop": {json.dumps(["x" * 256] * 16)}'))
    assert isinstance(event, client_events.SessionUpdate)


@pytest.mark.parametrize(
    ("frame", "event_id"),
    [
        ('{"event_id": "e", "type": "x"}', "e"),
        ('{"event_id": "e", ', "e"),
        ('{"type": "x"}', None),
        ('{"event_id": 7}', None),
        ('{"event_id": "%s"}' % ("e" * 600), None),
        ("event_id", None),
        ("[" * 5_000 + '"event_id": "e"', "e"),
    ],
)
def test_event_id_is_extracted_from_malformed_frames(frame: str, event_id: str | None) -> None:
    assert extract_event_id(frame) == event_id


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["type", "event_id", "session", "item", "response", "item_id", "role", "content", "tools"]
)
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(client_events.EVENT_TYPES)},
    optional={
        "event_id": JSON,
        "session": st.dictionaries(KEYS | st.text(), JSON, max_size=6) | JSON,
        "item": st.fixed_dictionaries(
            {"type": st.sampled_from(client_events.ITEM_TYPES)},
            optional={"role": st.just("user"), "content": JSON, "id": JSON, "name": JSON},
        ),
        "item_id": JSON,
        "response": st.dictionaries(KEYS | st.text(), JSON, max_size=6) | JSON,
    },
)


@given(st.binary() | st.text())
def test_random_bytes_are_refused_as_a_bad_frame(frame: bytes | str) -> None:
    with pytest.raises(BadFrame) as caught:
        decode_frame(frame)
    assert caught.value.message


@given(EVENTS, st.data())
def test_mutated_events_are_decoded_or_refused(event: object, data: st.DataObject) -> None:
    frame = json.dumps(event)
    at = data.draw(st.integers(0, len(frame)))
    mutated = (
        frame[:at] + data.draw(st.sampled_from(["", "x", '"', "}", "\x00", "1e9"])) + frame[at:]
    )
    for candidate in (frame, mutated):
        with contextlib.suppress(Refusal):
            decode_command(
                decode_frame(candidate),
                GenerationSettings(),
                GenerationSettings(),
                lambda prefix: f"{prefix}_1",
            )


def test_values_quoted_in_errors_are_shortened() -> None:
    for value in ("x" * 100_000, "x\n" * 50_000):
        with pytest.raises(BadFrame) as caught:
            decode_frame(json.dumps({"type": value}))
        assert caught.value.code == "invalid_value"
        assert len(caught.value.message) < 1000

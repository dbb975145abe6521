"""Property tests of the Realtime codec: a frame is an event, or a BadFrame that names the fault."""

import contextlib
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from continuo.realtime.errors import BadFrame, Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.realtime_api import (
    client_events,
    decode_command,
    decode_frame,
    extract_event_id,
)
from continuo.realtime.protocol.settings import GenerationSettings
from tests.fuzz import hostile
from tests.fuzz.corpus import EVENTS

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in `value`, as the path of keys to it."""
    paths = [path] if path else []
    keys = value if isinstance(value, dict) else range(len(value)) if type(value) is list else ()
    return paths + [inner for key in keys for inner in paths_in(value[key], (*path, key))]


PLACES = [(event, place) for event in EVENTS for place in paths_in(event)]


def decode(frame: str | bytes) -> client_events.ClientEvent | BadFrame:
    try:
        return decode_frame(frame)
    except BadFrame as refusal:
        return refusal


def check(result: client_events.ClientEvent | BadFrame) -> None:
    if isinstance(result, BadFrame):
        assert result.message
        assert result.code
        assert result.event_id is None or len(result.event_id) <= 512


@given(st.binary() | st.text())
def test_any_frame_decodes_to_an_event_or_is_refused(frame: bytes | str) -> None:
    check(decode(frame))
    extract_event_id(frame)


@settings(max_examples=1_000)
@given(st.sampled_from(PLACES), VALUES)
@example((EVENTS[0], ("session", "seed")), 2**64)
def test_refusal_of_a_wrong_value_names_a_key_of_the_event(
    place: tuple[Any, tuple[Any, ...]], value: Any
) -> None:
    """A decoded event becomes a command or a refusal; a BadFrame names a key of the event."""
    event, path = copy.deepcopy(place[0]), place[1]
    parent = event
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    try:
        frame = msgspec.json.encode(event)
    except (OverflowError, UnicodeEncodeError):
        return  # JSON cannot represent the value
    decoded = decode(frame)
    if isinstance(decoded, BadFrame):
        check(decoded)
        named = (decoded.param or "type").split(".")[0].split("[")[0]
        assert named in event
        return
    with contextlib.suppress(Refusal):
        decode_command(decoded, GenerationSettings(), GenerationSettings(), generate_id)


@given(st.sampled_from(EVENTS), st.text(max_size=20))
def test_unknown_keys_are_ignored(event: dict[str, Any], key: str) -> None:
    if key in event or key in client_events.ClientEventBase.__struct_fields__:
        return
    before = decode_frame(msgspec.json.encode(event))
    frame = msgspec.json.encode({**event, f"x_{key}": [1, {"a": None}]})
    assert decode_frame(frame) == before


@pytest.mark.parametrize("place", hostile.PLACES, ids=range(len(hostile.PLACES)))
def test_hostile_values_decode_or_are_refused(place: str) -> None:
    for value in hostile.values():
        check(decode(place % value))
        extract_event_id(place % value)


def test_frame_of_too_many_values_is_refused_before_decoding() -> None:
    many = ",".join(["0"] * 40_000)
    with pytest.raises(BadFrame, match=r"40,00\d values or more; the limit is 32,768") as caught:
        decode_frame('{"event_id": "e", "type": "response.cancel", "x": [' + many + "]}")
    assert (caught.value.code, caught.value.event_id) == ("frame_too_large", "e")
    quoted = ",".join(['"\\""'] * 80_000)
    with pytest.raises(BadFrame, match=r"3\d,\d{3} values or more; the limit is 32,768"):
        decode_frame('{"type": "response.cancel", "x": [' + quoted + "]}")


def test_commas_in_a_string_are_not_counted_as_values() -> None:
    text = 'well, "quoted", \\ and, ' * 20_000
    event = decode_frame(msgspec.json.encode({"type": "input_text_buffer.append", "text": text}))
    assert isinstance(event, client_events.TextAppend)
    assert event.text == text

"""Complexity limits: JSON values and escapes are counted before a frame is parsed."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.errors import BadFrame, Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import BODY_ESCAPES_MAX, BODY_VALUES_MAX, TEXT_CHARS_MAX
from continuo.realtime.protocol.complexity_limits import (
    QUOTES_PER_VALUE_MAX,
    SLICE_CHARS,
    BodyComplexity,
    JsonValueCounter,
    check_frame_complexity,
    count_depth,
    count_values_over,
)
from continuo.realtime.protocol.responses_api import decode_body, decode_command
from continuo.realtime.protocol.settings import GenerationSettings

VALUES = st.recursive(
    st.integers() | st.text(alphabet='ab\\",[]{}é'),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
)


def value_count(value: object) -> int:
    """The number of values, counted recursively: the reference."""
    match value:
        case dict():
            return 1 + sum(map(value_count, value.values()))
        case list():
            return 1 + sum(map(value_count, value))
        case _:
            return 1


@given(value=VALUES)
def test_json_values_are_counted_in_slices(value: object) -> None:
    """For slices of any size: never too few, and at most one more per empty array or object."""
    text = json.dumps(value, ensure_ascii=False)
    empty = sum(text.count(each) for each in ("[]", "{}"))
    for slice in (1, 2, 3, 7, SLICE_CHARS):
        counter = JsonValueCounter()
        for start in range(0, len(text), slice):
            counter.feed(text[start : start + slice])
        assert value_count(value) <= counter.count <= value_count(value) + empty, slice


def depth_of(value: object) -> int:
    """The depth of objects and arrays, counted recursively: the reference."""
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


@given(value=VALUES)
def test_depth_is_counted_outside_of_strings(value: object) -> None:
    assert count_depth(json.dumps(value, ensure_ascii=False)) == depth_of(value)


@given(value=VALUES, limit=st.integers(0, 20))
def test_values_over_a_limit_are_counted(value: object, limit: int) -> None:
    text = json.dumps(value, ensure_ascii=False)
    counts = {count_values_over(frame, limit) for frame in (text, text.encode())}
    empty = sum(text.count(each) for each in ("[]", "{}"))
    assert counts == {0} or min(counts) > limit, "a count within the limit"
    assert counts != {0} or value_count(value) <= limit, "a frame of too many values has no count"
    assert counts == {0} or value_count(value) + empty > limit, "one at the limit is refused"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[" + "[[[]]]," * BODY_VALUES_MAX + "0]", "values or more; the limit is 40,960"),
        ('"' + "\\n" * (BODY_ESCAPES_MAX + 1) + '"', "escapes or more; the limit is 4,194,304"),
        ("[" + '""' * 4 * BODY_VALUES_MAX + "]", "values or more; the limit is 40,960"),
    ],
    ids=["values", "escapes", "quotes"],
)
def test_body_is_refused_as_soon_as_it_holds_too_many_values_or_escapes(
    body: str, message: str
) -> None:
    fed, refusal = feed_until_refused(body.encode() * 2)
    assert re.search(message, refusal.message)
    assert refusal.code == "frame_too_large"
    assert fed <= len(body) + SLICE_CHARS


def feed_until_refused(body: bytes) -> tuple[int, BadFrame]:
    """Returns the number of bytes that were fed, and the refusal."""
    complexity = BodyComplexity("body")
    for end in range(SLICE_CHARS, len(body), SLICE_CHARS):
        try:
            complexity.feed(body[end - SLICE_CHARS : end])
        except BadFrame as refusal:
            return end, refusal
    raise AssertionError("it was not refused")


def test_strings_are_no_more_values_than_they_are() -> None:
    """Each value of an object has four quotes, the most that a value can have."""
    text = json.dumps({f"{n:05}": "" for n in range(BODY_VALUES_MAX - 2)})
    assert text.count('"') // QUOTES_PER_VALUE_MAX == BODY_VALUES_MAX - 2
    BodyComplexity("body").feed(text)


def test_punctuation_in_a_string_is_not_counted() -> None:
    text = json.dumps({"input": '[{"a", \\, "b"}], ' * BODY_VALUES_MAX})
    assert len(list(check_frame_complexity(text))) > 2, "the check did not yield to other tasks"


def test_tools_with_large_parameters_are_refused() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"a": "x" * TEXT_CHARS_MAX}}
    request = decode_body(json.dumps({"input": "x", "tools": [tool]}).encode())
    with pytest.raises(Refusal, match="at most 524,288 characters") as caught:
        decode_command(request, GenerationSettings(), "demo", generate_id)
    assert caught.value.param == "tools[0].parameters"

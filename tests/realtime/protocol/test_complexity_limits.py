"""Complexity limits: JSON values and escapes are counted before a frame is parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.errors import BadFrame, Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import BODY_ESCAPES_MAX, BODY_VALUES_MAX, TEXT_CHARS_MAX
from continuo.realtime.protocol import complexity_limits
from continuo.realtime.protocol.complexity_limits import check_body_complexity, count_json_values
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


@pytest.mark.parametrize("slice", [1, 2, 3, 7, complexity_limits.SLICE_CHARS])
@given(value=VALUES)
def test_json_values_are_counted_in_slices(slice: int, value: object) -> None:
    """For slices of any size: never too few, and at most one more per empty array or object."""
    text = json.dumps(value, ensure_ascii=False)
    most = text.count(",") + text.count("]") + text.count("}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(complexity_limits, "SLICE_CHARS", slice)
        counted = {count_json_values(data, most) for data in (text, text.encode())}
    empty = sum(text.count(each) for each in ("[]", "{}"))
    (count,) = counted
    assert value_count(value) <= count <= value_count(value) + empty


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[" + "[[[]]]," * BODY_VALUES_MAX + "0]", "values or more; the limit is 40,960"),
        ('"' + "\\n" * (BODY_ESCAPES_MAX + 1) + '"', "4,194,305 escapes; the limit is 4,194,304"),
    ],
)
def test_body_with_too_many_values_or_escapes_is_refused(body: str, message: str) -> None:
    with pytest.raises(BadFrame, match=message) as caught:
        list(check_body_complexity(body.encode(), "body"))
    assert caught.value.code == "frame_too_large"


def test_punctuation_in_a_string_is_not_counted() -> None:
    text = json.dumps({"input": '[{"a", \\, "b"}], ' * BODY_VALUES_MAX})
    assert len(list(check_body_complexity(text, "body"))) > 2, (
        "the check did not yield to other tasks"
    )


def test_tools_with_large_parameters_are_refused() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"a": "x" * TEXT_CHARS_MAX}}
    request = decode_body(json.dumps({"input": "x", "tools": [tool]}).encode())
    with pytest.raises(Refusal, match="at most 524,288 characters") as caught:
        decode_command(request, GenerationSettings(), "demo", generate_id)
    assert caught.value.param == "tools[0].parameters"

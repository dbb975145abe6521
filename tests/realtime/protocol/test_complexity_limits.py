"""What is in a frame is counted before anything is made of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.errors import BadFrame, Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import BODY_ESCAPES_MAX, BODY_VALUES_MAX, TEXT_CHARS_MAX
from continuo.realtime.protocol import complexity_limits
from continuo.realtime.protocol.complexity_limits import check_complexity, count_json_values
from continuo.realtime.protocol.responses_api import decode_body, decode_command
from continuo.realtime.protocol.settings import GenerationSettings

VALUES = st.recursive(
    st.integers() | st.text(alphabet='ab\\",[]{}é'),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
)


def values(value: object) -> int:
    """The slow way."""
    match value:
        case dict():
            return 1 + sum(map(values, value.values()))
        case list():
            return 1 + sum(map(values, value))
        case _:
            return 1


@pytest.mark.parametrize("slice", [1, 2, 3, 7, complexity_limits.SLICE_CHARS])
@given(value=VALUES)
def test_what_is_weighed(slice: int, value: object) -> None:
    """In pieces of any size: none too few, and one more at most for an empty one."""
    text = json.dumps(value, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(complexity_limits, "SLICE_CHARS", slice)
        counted = {count_json_values(text, 0), count_json_values(text.encode(), 0)}
    empty = sum(text.count(each) for each in ("[]", "{}"))
    (count,) = counted
    assert values(value) <= count <= values(value) + empty


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[" + "[[[]]]," * BODY_VALUES_MAX + "0]", "values or more; the limit is 40,960"),
        ('"' + "\\n" * (BODY_ESCAPES_MAX + 1) + '"', "4,194,305 escapes; the limit is 4,194,304"),
    ],
)
def test_too_much_is_refused(body: str, words: str) -> None:
    with pytest.raises(BadFrame, match=words) as caught:
        list(check_complexity(body.encode(), "body"))
    assert caught.value.code == "frame_too_large"


def test_marks_in_a_text_are_not_values() -> None:
    text = json.dumps({"input": '[{"a", \\, "b"}], ' * BODY_VALUES_MAX})
    assert len(list(check_complexity(text, "body"))) > 2, "others have their turn"


def test_large_tools_are_refused() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"a": "x" * TEXT_CHARS_MAX}}
    asked = decode_body(json.dumps({"input": "x", "tools": [tool]}).encode())
    with pytest.raises(Refusal, match="at most 524,288 characters") as caught:
        decode_command(asked, GenerationSettings(), "demo", generate_id)
    assert caught.value.param == "tools[0].parameters"

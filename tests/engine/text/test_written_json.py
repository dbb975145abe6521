"""JSON values keep the text in which they were written, and are otherwise those of `json`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine.text.written_json import has_text, read_json, write_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
STYLES: list[dict[str, Any]] = [
    {"separators": (",", ":")},
    {"indent": 2},
    {"separators": (" ,", " : ")},
    {"indent": 1, "ensure_ascii": True},
]


@given(VALUES, st.sampled_from(STYLES))
def test_value_is_written_as_it_was_read(value: object, style: dict[str, Any]) -> None:
    text = json.dumps({"a": value, "b": [value]}, **{"ensure_ascii": False, **style})
    found = read_json(text)
    assert found == json.loads(text)
    assert write_json(found) == text
    assert write_json({"name": "f", "arguments": found}) == f'{{"name": "f", "arguments": {text}}}'


@given(VALUES, st.booleans())
def test_usual_text_gives_an_ordinary_value(value: object, ensure_ascii: bool) -> None:
    found = read_json(json.dumps({"a": value}, ensure_ascii=ensure_ascii))
    assert not has_text(found)
    assert write_json(found) == json.dumps({"a": value}, ensure_ascii=False)


def test_value_in_an_object_has_its_own_text() -> None:
    found = read_json('{"n": 1.50, "all":[1,2], "o":{"a":1}, "usual": [1, 2], "n": 2e3}')
    assert isinstance(found, dict)
    written = {key: write_json(item) for key, item in found.items()}
    assert written == {"n": "2e3", "all": "[1,2]", "o": '{"a":1}', "usual": "[1, 2]"}
    assert (str(found["n"]), found["n"]) == ("2e3", 2000)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1} b', "{'a': 1}"])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        read_json(text)

"""JSON values that keep the text in which they were written. Pure.

    {"price": 12.50, "tags":["a"]}      read and written again, byte for byte
    {"price": 12.5, "tags": ["a"]}      the same value, as `json.dumps` writes it

A model that wrote the first text must find the first text in the conversation: other ids would cost
the KV of its own output. A text in the form of `json.dumps`, also in ASCII, gives an ordinary
value, which a chat template writes in a form of its own: clients write arguments anew in that form.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

_DECODER = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[ \t\n\r,:]*")
_CALL_DEPTH = 3
"""Depth of the arguments in a list of calls: list, call, function."""


class _Written:
    text_: str
    """The text. Chat templates look up no such name."""


class _WrittenObject(dict[str, object], _Written):
    pass


class _WrittenArray(list[object], _Written):
    pass


class _WrittenNumber(float, _Written):
    def __str__(self) -> str:
        return self.text_


def read_json(text: str) -> object:
    """Read a JSON value that keeps its text, as do the values in an object. Strings may have line
    breaks in them. Raises ValueError."""
    return _attach(_DECODER.decode(text), text.strip())


def write_json(value: object, *, ensure_ascii: bool = False) -> str:
    """Write a value as `json.dumps` does, but each value that has a text as its text."""

    def write(value: object) -> str:
        return write_json(value, ensure_ascii=ensure_ascii)

    if isinstance(value, _Written):
        return value.text_
    if not has_text(value):
        return json.dumps(value, ensure_ascii=ensure_ascii)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, object], value).items()
        return f"{{{', '.join(f'{write(key)}: {write(item)}' for key, item in pairs)}}}"
    return f"[{', '.join(map(write, cast(list[object], value)))}]"


def has_text(value: object, depth: int = _CALL_DEPTH) -> bool:
    """Whether a value has a text, or one in it has, as the arguments in a list of calls may."""
    if isinstance(value, _Written):
        return True
    items: list[object] = []
    if isinstance(value, Mapping):
        items = list(cast(Mapping[str, object], value).values())
    elif isinstance(value, (list, tuple)):
        items = list(cast(list[object], value))
    return depth > 0 and any(has_text(item, depth - 1) for item in items)


def change_text(before: object, after: object, change: Callable[[str], str]) -> object:
    """Return `after`, with the changed text of `before`, if it has one."""
    if isinstance(before, (_WrittenObject, _WrittenArray)):
        return _with_text(after, change(before.text_))
    return after


def _attach(value: Any, text: str) -> object:
    if not isinstance(value, (dict, list, float)):
        return cast(object, value)
    if text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        return cast(object, value)
    if isinstance(value, dict):
        value = {key: _attach(item, written) for key, item, written in iter_members(text)}
    return _with_text(value, text)


def _with_text(value: Any, text: str) -> object:
    if isinstance(value, dict):
        written = _WrittenObject(cast(dict[str, object], value))
    elif isinstance(value, list):
        written = _WrittenArray(cast(list[object], value))
    else:
        written = _WrittenNumber(value)
    written.text_ = text
    return written


def keep_json(text: str, value: object) -> str:
    """Return the text of a value without space around it, if that is JSON, else the value as
    `json.dumps` writes it."""
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(value, ensure_ascii=False)
    return text.strip()


def iter_members(text: str) -> Iterator[tuple[str, object, str]]:
    """Yield key, value and text of each member of an object, which is known to be JSON."""
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, at)
        value, at = _DECODER.raw_decode(text, start)
        yield cast(str, key), value, text[start:at]
        at = _skip(text, at)


def _skip(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    assert found is not None, "the pattern matches nothing as well"
    return found.end()

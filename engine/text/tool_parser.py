"""Calls of tools, read out of what the model writes while it writes it. Knows no tokenizer.

    Hermes, Qwen    text <tool_call>{"name": "f", "arguments": {...}}</tool_call>
    Llama 3         {"name": "f", "parameters": {...}}   or behind <|python_tag|>
    Mistral         text [TOOL_CALLS] [{"name": "f", "arguments": {...}, "id": "..."}, ...]
    Mistral, later  text [TOOL_CALLS]f[ARGS]{...}

One machine reads them all; a `ToolFormat` says what differs. Its states:

    text ── marker ──▶ head ── name, start of arguments ──▶ arguments ──▶ rest ──▶ after ──▶ text
                        └── no call after all: the marker was text                    └─▶ head

What cannot be a call (any more) comes out as text; a call that was announced always ends, with
`complete` false if its arguments do not. How the text is cut into pieces changes nothing.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import cast

import msgspec

from continuo.engine.text.tool_format import ToolFormat


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class CallStarted(msgspec.Struct, frozen=True):
    name: str


class ArgumentsDelta(msgspec.Struct, frozen=True):
    text: str
    """A piece of JSON text."""


class CallDone(msgspec.Struct, frozen=True):
    complete: bool = True
    """False: the arguments were cut off or are no JSON."""


ToolEvent = TextDelta | CallStarted | ArgumentsDelta | CallDone

_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)', re.DOTALL
)
_NAMED_HEAD = re.compile(r"\s*([\w.:-]+)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*(?=\S)")
_NAMED_LONGEST = "f[CALL_ID]x[ARGS]{"
_FIRST_KEY = re.compile(rf"\{{\s*({_STRING})", re.DOTALL)
_KEYS = ("name", "arguments", "parameters", "type", "id")
_CALL_MAX = 16_384
"""Characters of a call that are held until its name is known."""


class ToolParser:
    """`push` text as it comes, `finish` when there is no more; both give events."""

    def __init__(self, format: ToolFormat | None, names: Collection[str] | None = None) -> None:
        """`format` None: everything is text. `names`: the tools there are; without a marker only
        these are calls."""
        self._format = format
        self._names = names
        self._rest = ""
        """Not yet understood."""
        self._raw = ""
        """What was taken for markup: text after all, if no call follows."""
        self._events: list[ToolEvent] = []
        self._scanner = _Value()
        self._owes_close = False
        """A call ended without its closing marker, which may still come."""
        self._behind_call = False
        self._state: Callable[[ToolParser], bool] = ToolParser._text
        if format is None:
            self._state = ToolParser._all_text
        elif format.bare:
            self._state = ToolParser._beginning

    def push(self, text: str) -> list[ToolEvent]:
        self._rest += text
        while self._state(self):
            pass
        return self._take()

    def finish(self) -> list[ToolEvent]:
        """What was held back; ends a call that is still open."""
        while self._state in (ToolParser._head, ToolParser._list):
            self._no_call()
            while self._state(self):
                pass
        if self._state == ToolParser._arguments:
            self._events.append(CallDone(complete=False))
        elif self._state == ToolParser._remainder:
            self._events.append(CallDone())
        elif self._state != ToolParser._after or not self._the.close.startswith(self._rest.strip()):
            self._say(self._rest)
        self._rest = ""
        return self._take()

    # --- states: each reads from self._rest; False: more text is needed ---

    def _all_text(self) -> bool:
        self._say(self._rest)
        self._rest = ""
        return False

    def _beginning(self) -> bool:
        """Of an answer that may be nothing but a call."""
        stripped = self._rest.lstrip()
        if not stripped:
            return False
        if stripped[0] == "{":
            self._raw = self._rest[: len(self._rest) - len(stripped)]
            self._rest = stripped
            self._state = ToolParser._head
        else:
            self._raw = ""
            self._state = ToolParser._text
        return True

    def _text(self) -> bool:
        markers = [self._the.marker, *([self._the.close] if self._owes_close else [])]
        found = [(at, marker) for marker in markers if (at := self._rest.find(marker)) >= 0]
        if not found:
            held = max(_overlap(self._rest, marker) for marker in markers)
            certain = len(self._rest[: len(self._rest) - held].rstrip())
            self._say(self._rest[:certain])
            self._rest = self._rest[certain:]
            return False
        at, marker = min(found)
        before = self._rest[:at].rstrip()
        self._say(before)
        self._raw = self._rest[len(before) : at + len(marker)]
        self._rest = self._rest[at + len(marker) :]
        if marker == self._the.marker:
            self._state = ToolParser._list if self._the.array else ToolParser._head
        else:
            self._owes_close = False
        return True

    def _list(self) -> bool:
        """Before the bracket that opens a list of calls."""
        stripped = self._rest.lstrip()
        if not stripped:
            return False
        if stripped[0] == "[":
            at = len(self._rest) - len(stripped) + 1
            self._raw += self._rest[:at]
            self._rest = self._rest[at:]
        elif stripped[0] != "{":
            self._no_call()
            return True
        self._state = ToolParser._head
        return True

    def _head(self) -> bool:
        """Before the name of a call."""
        if self._the.args_marker:
            return self._named_head()
        head = _HEAD.match(self._rest)
        if head and self._rest[head.end()] == "{":
            name = _string(head[1])
            if name is None or not self._is_tool(name):
                return self._no_call()
            return self._start(name, head.end())
        return self._whole_call()

    def _named_head(self) -> bool:
        """name[ARGS]{ or name[CALL_ID]id[ARGS]{"""
        head = _NAMED_HEAD.match(self._rest)
        if head and self._rest[head.end()] == "{" and self._is_tool(head[1]):
            return self._start(head[1], head.end())
        # It may still become a head if some ending of the longest makes it one.
        endings = (_NAMED_LONGEST[at:] for at in range(len(_NAMED_LONGEST)))
        begun = any(_NAMED_HEAD.match(self._rest + ending) for ending in endings)
        return self._no_call() if head or not begun or len(self._rest) > _CALL_MAX else False

    def _whole_call(self) -> bool:
        """A call whose arguments cannot be shown as they come (they stand before the name, or are
        no object): read when it is complete."""
        start = len(self._rest) - len(self._rest.lstrip())
        if start == len(self._rest):
            return False
        key = _FIRST_KEY.match(self._rest, start)
        wrong_key = key is not None and _string(key[1]) not in _KEYS
        if self._rest[start] != "{" or wrong_key or len(self._rest) > _CALL_MAX:
            return self._no_call()
        value = _Value()
        end = value.feed(self._rest[start:])
        if not value.ended:
            return False
        call = _call(self._rest[start : start + end])
        if value.broken or call is None:
            return self._no_call()
        name, arguments = call
        if not self._is_tool(name) or (arguments is None and not self._marked):
            return self._no_call()
        arguments = "{}" if arguments is None else arguments
        self._events += [CallStarted(name), ArgumentsDelta(arguments), CallDone()]
        self._called(start + end)
        return True

    def _arguments(self) -> bool:
        end = self._scanner.feed(self._rest)
        if end:
            self._events.append(ArgumentsDelta(self._rest[:end]))
        self._rest = self._rest[end:]
        if not self._scanner.ended:
            return False
        if self._scanner.broken:
            self._events.append(CallDone(complete=False))
            self._behind_call = self._owes_close = bool(self._the.close)
            self._state = ToolParser._text
        elif self._the.args_marker:
            self._events.append(CallDone())
            self._called(0)
        else:
            self._scanner = _Value(inside="{")
            self._state = ToolParser._remainder
        return True

    def _remainder(self) -> bool:
        """Of the call's object, behind the arguments: nothing that matters, and its brace."""
        if self._scanner.fresh:
            stripped = self._rest.lstrip()
            if not stripped:
                return False
            if stripped[0] not in ",}":  # A forgotten brace is forgiven.
                self._events.append(CallDone())
                self._called(0)
                return True
        end = self._scanner.feed(self._rest)
        self._rest = self._rest[end:]
        if self._scanner.ended:
            self._events.append(CallDone())
            self._called(0)
        return self._scanner.ended

    def _after(self) -> bool:
        """Behind a call: its closing marker, the next one of a list, or text."""
        stripped = self._rest.lstrip()
        if not stripped:
            return False
        close = self._the.close
        if close and stripped.startswith(close):
            self._rest = stripped[len(close) :]
            self._state = ToolParser._text
        elif close and close.startswith(stripped):
            return False
        elif (stripped[0] == "," and self._the.array) or (stripped[0] == ";" and self._the.bare):
            self._raw = self._rest[: len(self._rest) - len(stripped) + 1]
            self._rest = stripped[1:]
            self._state = ToolParser._head
        else:
            self._rest = stripped[1:] if stripped[0] == "]" and self._the.array else self._rest
            self._owes_close = bool(close)
            self._state = ToolParser._text
        return True

    # --- steps between them ---

    @property
    def _the(self) -> ToolFormat:
        assert self._format is not None
        return self._format

    def _is_tool(self, name: str) -> bool:
        return bool(name) and (self._marked or self._names is None or name in self._names)

    @property
    def _marked(self) -> bool:
        return not self._the.bare or self._the.marker in self._raw

    def _start(self, name: str, end: int) -> bool:
        self._events.append(CallStarted(name))
        self._rest = self._rest[end:]
        self._scanner = _Value()
        self._state = ToolParser._arguments
        return True

    def _called(self, end: int) -> None:
        self._rest = self._rest[end:]
        self._behind_call = True
        self._state = ToolParser._after

    def _no_call(self) -> bool:
        """The markup was text."""
        self._say(self._raw)
        self._raw = ""
        self._state = ToolParser._text
        return True

    def _say(self, text: str) -> None:
        if self._behind_call:
            text = text.lstrip()
        if text:
            self._behind_call = False
            self._events.append(TextDelta(text))

    def _take(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events


class _Value:
    """Finds the end of one JSON object or array, a piece at a time. Checks brackets and strings,
    nothing else."""

    def __init__(self, inside: str = "") -> None:
        self._open = inside
        self._quoted = False
        self._escaped = False
        self.fresh = True
        """Nothing was fed yet."""
        self.ended = False
        self.broken = False
        """It ended in a bracket that does not match."""

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        for at, letter in enumerate(text):
            if self.ended:
                return at
            self.fresh = False
            self._read(letter)
            if self.broken:
                return at
        return len(text)

    def _read(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = letter == "\\"
            self._quoted = letter != '"'
        elif letter == '"':
            self._quoted = True
        elif letter in "{[":
            self._open += letter
        elif letter in "}]":
            self.broken = self._open[-1:] + letter not in ("{}", "[]")
            self._open = self._open[:-1]
            self.ended = self.broken or not self._open


def _call(text: str) -> tuple[str, str | None] | None:
    """Name and arguments (JSON text) of a call written as one object."""
    try:
        value: object = json.loads(text, strict=False)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    call = cast(dict[str, object], value)
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
    if not isinstance(name, str):
        return None
    if isinstance(arguments, str) or arguments is None:
        return name, arguments
    return name, json.dumps(arguments, ensure_ascii=False)


def _string(quoted: str) -> str | None:
    try:
        return json.loads(quoted)
    except ValueError:
        return None


def _overlap(text: str, marker: str) -> int:
    """Length of the longest ending of `text` that begins `marker`."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if marker.startswith(text[-length:])), 0)

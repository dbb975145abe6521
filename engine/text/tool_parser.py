"""Streaming parser of tool calls in the text of a response.

    object     text <tool_call>{"name": "f", "arguments": {...}}</tool_call>
               {"name": "f", "parameters": {...}}   or after <|python_tag|>
               text [TOOL_CALLS] [{"name": "f", "arguments": {...}, "id": "..."}, ...]
    named      text [TOOL_CALLS]f[ARGS]{...}
               text <tool_call> <function=f> <parameter=a> 1 </parameter> </function> </tool_call>
               text <|tool_call_start|>[f(a=1), g()]<|tool_call_end|>
               [f(a=1), g()]   or   f {...} g {...}

One state machine parses them all, parameterized by a `ToolFormat`:

    text ── marker ──▶ head ── name, start of arguments ─▶ arguments ─▶ remainder ─▶ after ─▶ text
                        └── not a call: the marker was text                           └─▶ head

Input is emitted as text as soon as it cannot be part of a call. Every ParsedCallStarted is followed
by a ParsedCallEnded, with `is_complete` false if the arguments have no end. Arguments are emitted
as JSON in every format. The events do not depend on how the text is split into pieces, except for
the sizes of text and argument pieces.
"""

import json
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import cast

import msgspec

from continuo.engine.text.tool_arguments import (
    JsonScanner,
    NeedsMore,
    NoMatch,
    make_reader,
    match_literal,
)
from continuo.engine.text.tool_format import (
    JsonArguments,
    NamedCalls,
    TaggedArguments,
    ToolFormat,
)
from continuo.engine.text.written_json import iter_members, keep_json


class ParsedText(msgspec.Struct, frozen=True):
    text: str


class ParsedCallStarted(msgspec.Struct, frozen=True):
    name: str


class ParsedArguments(msgspec.Struct, frozen=True):
    text: str
    """A piece of the JSON text of a call's arguments."""


class ParsedCallEnded(msgspec.Struct, frozen=True):
    is_complete: bool = True
    """False if the arguments were cut off or are not JSON."""


ParsedToolEvent = ParsedText | ParsedCallStarted | ParsedArguments | ParsedCallEnded

TypesOfArguments = Callable[[str, str], frozenset[str] | None]
"""Returns the JSON types that a tool's schema allows for one of its arguments. Takes the name of
the tool and that of the argument. None: any type."""
_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\s*\{{\s*"(?:tool_)?name"\s*:\s*({_STRING})\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\S)',
    re.DOTALL,
)
_NAME = re.compile(r"\s*([\w.-]+)")
_CALL_ID = re.compile(r"\s*([\w.:-]*)")
_FIRST_KEY = re.compile(rf"\{{\s*({_STRING})", re.DOTALL)
_CALL_KEYS = frozenset(
    ("name", "arguments", "parameters", "type", "id", "tool_name", "tool_call_id")
)
_CALL_CHARS_MAX = 16_384
"""Maximum number of characters held back until the name of a call is known; longer text is not a
call."""


class ToolParser:
    """Parses the text of one response: `push` each piece, then `finish`; both return events."""

    def __init__(
        self,
        tool_format: ToolFormat | None,
        tool_names: Collection[str] | None = None,
        types_of: TypesOfArguments = lambda _name, _key: None,
    ) -> None:
        """`tool_format` None: all input is emitted as text. `tool_names`: names of the declared
        tools. A call without a marker is recognized only if it names one of these (None: any
        name). `types_of`: the types that an argument may have."""
        self._optional_format = tool_format
        self._tool_names = tool_names
        self._types_of = types_of
        self._unread: str = ""
        """Text pushed but not parsed yet."""
        self._markup: str = ""
        """Text consumed as the markup that opens a call (marker, brackets, spaces); emitted as text
        if no call follows."""
        self._events: list[ParsedToolEvent] = []
        self._scanner = JsonScanner()
        self._reader = make_reader(JsonArguments())
        self._is_close_pending = False
        """Whether a call ended without its closing marker, which may still follow and is then
        skipped."""
        self._is_after_call = False
        self._is_next = False
        """Whether the call being read follows another one in its list."""
        self._state: Callable[[ToolParser], bool] = ToolParser._read_text
        if tool_format is None:
            self._state = ToolParser._read_all_text
        elif tool_format.allows_bare:
            self._state = ToolParser._read_beginning

    def push(self, text: str) -> list[ParsedToolEvent]:
        self._unread += text
        while self._state(self):
            pass
        return self._take_events()

    def finish(self) -> list[ParsedToolEvent]:
        """Finish parsing: emit the text that was held back, and end a call that is still open."""
        while self._state in (ToolParser._read_head, ToolParser._read_list):
            self._reject_call()
            while self._state(self):
                pass
        if self._state == ToolParser._read_arguments:
            _, piece = self._reader.feed(self._unread, is_last=True)
            if piece:
                self._events.append(ParsedArguments(piece))
            is_complete = self._reader.has_ended and not self._reader.is_broken
            self._events.append(ParsedCallEnded(is_complete=is_complete))
        elif self._state == ToolParser._read_call_end or self._state == ToolParser._read_remainder:
            self._events.append(ParsedCallEnded())
        elif (
            self._state != ToolParser._read_after_call
            or not self._tool_format.close_marker.startswith(self._unread.strip())
        ):
            self._emit_text(self._unread)
        self._unread = ""
        return self._take_events()

    # --- states: each consumes self._unread; returns False if more text is needed ---

    def _read_all_text(self) -> bool:
        self._emit_text(self._unread)
        self._unread = ""
        return False

    def _read_beginning(self) -> bool:
        """Parse the beginning of a response that may consist of a call alone. Returns False if more
        text is needed."""
        stripped = self._unread.lstrip()
        if not stripped:
            return False
        named = self._tool_format.named
        opening = "{" if named is None else named.begin[:1]
        if stripped.startswith(opening):
            self._markup = self._unread[: len(self._unread) - len(stripped)]
            self._unread = stripped
            self._state = ToolParser._read_head
        else:
            self._markup = ""
            self._state = ToolParser._read_text
        return True

    def _read_text(self) -> bool:
        close = self._tool_format.close_marker if self._is_close_pending else ""
        markers = [marker for marker in (self._tool_format.marker, close) if marker]
        found = [(at, marker) for marker in markers if (at := self._unread.find(marker)) >= 0]
        if not found:
            held = max((_count_overlap(self._unread, marker) for marker in markers), default=0)
            certain = len(self._unread[: len(self._unread) - held].rstrip())
            self._emit_text(self._unread[:certain])
            self._unread = self._unread[certain:]
            return False
        at, marker = min(found)
        before = self._unread[:at].rstrip()
        self._emit_text(before)
        self._markup = self._unread[len(before) : at + len(marker)]
        self._unread = self._unread[at + len(marker) :]
        if marker == self._tool_format.marker:
            self._state = (
                ToolParser._read_list if self._tool_format.is_array else ToolParser._read_head
            )
        else:
            self._is_close_pending = False
        return True

    def _read_list(self) -> bool:
        """Parse the bracket that opens a list of calls. Returns False if more text is needed."""
        stripped = self._unread.lstrip()
        if not stripped:
            return False
        if stripped[0] == "[":
            at = len(self._unread) - len(stripped) + 1
            self._markup += self._unread[:at]
            self._unread = self._unread[at:]
        elif stripped[0] != "{":
            self._reject_call()
            return True
        self._state = ToolParser._read_head
        return True

    def _read_head(self) -> bool:
        """Parse the head of a call: its text up to the start of its arguments. Returns False if
        more text is needed."""
        if self._tool_format.named is not None:
            return self._read_named_head(self._tool_format.named)
        head = _HEAD.match(self._unread)
        if head and self._unread[head.end()] == "{":
            name = _parse_string(head[1])
            if name is None or not self._is_tool(name):
                return self._reject_call()
            return self._start_call(name, head.end())
        return self._read_whole_call()

    def _read_named_head(self, named: NamedCalls) -> bool:
        """Parse what is between the marker, or the call before, and the arguments. Returns False if
        more text is needed."""
        text = self._unread
        try:
            at = match_literal(named.next_begin if self._is_next else named.begin, text, 0)
            name = _match_word(_NAME, text, at)
            at = name.end()
            if named.id_mark:
                at = _skip_call_id(named.id_mark, text, at)
            at = match_literal(named.name_end, text, at)
            if named.name_end.endswith("\n") and text[at : at + 1] == "\n":
                at += 1
            if isinstance(named.arguments, JsonArguments):
                at = match_literal("{", text, at) - 1
            if not self._is_tool(name[1]):
                raise NoMatch
        except NoMatch:
            return self._reject_call()
        except NeedsMore:
            return len(text) > _CALL_CHARS_MAX and self._reject_call()
        return self._start_call(name[1], at)

    def _read_whole_call(self) -> bool:
        """Parse a complete call whose arguments cannot be streamed: they precede the name, or are
        not an object. Returns False if more text is needed."""
        start = len(self._unread) - len(self._unread.lstrip())
        if start == len(self._unread):
            return False
        key = _FIRST_KEY.match(self._unread, start)
        wrong_key = key is not None and _parse_string(key[1]) not in _CALL_KEYS
        if self._unread[start] != "{" or wrong_key or len(self._unread) > _CALL_CHARS_MAX:
            return self._reject_call()
        value = JsonScanner()
        end = value.feed(self._unread[start:])
        if not value.has_ended:
            return False
        call = _parse_call(self._unread[start : start + end])
        if value.is_broken or call is None:
            return self._reject_call()
        name, arguments = call
        if not self._is_tool(name) or (arguments is None and not self._has_marker):
            return self._reject_call()
        arguments = "{}" if arguments is None else arguments
        self._events += [ParsedCallStarted(name), ParsedArguments(arguments), ParsedCallEnded()]
        self._end_call(start + end)
        return True

    def _read_arguments(self) -> bool:
        end, piece = self._reader.feed(self._unread)
        if piece:
            self._events.append(ParsedArguments(piece))
        self._unread = self._unread[end:]
        if not self._reader.has_ended:
            return False
        if self._reader.is_broken:
            self._events.append(ParsedCallEnded(is_complete=False))
            self._is_after_call = self._is_close_pending = bool(self._tool_format.close_marker)
            self._state = ToolParser._read_text
        elif self._tool_format.named is not None:
            self._state = ToolParser._read_call_end
        else:
            self._scanner = JsonScanner(inside="{")
            self._state = ToolParser._read_remainder
        return True

    def _read_call_end(self) -> bool:
        """Skip the text that ends a named call. Returns False if more text is needed."""
        named = self._tool_format.named
        assert named is not None, "only named calls have an end of their own"
        end, is_complete = 0, True
        try:
            end = match_literal(named.end, self._unread, 0)
        except NeedsMore:
            return False
        except NoMatch:  # A missing end is tolerated where the arguments show their own.
            is_complete = not isinstance(named.arguments, TaggedArguments)
        self._events.append(ParsedCallEnded(is_complete=is_complete))
        self._end_call(end)
        return True

    def _read_remainder(self) -> bool:
        """Skip the remaining text of the call's JSON object after its arguments, up to its closing
        brace. Returns False if more text is needed."""
        if self._scanner.is_fresh:
            stripped = self._unread.lstrip()
            if not stripped:
                return False
            if stripped[0] not in ",}":  # A missing brace is tolerated.
                self._events.append(ParsedCallEnded())
                self._end_call(0)
                return True
        end = self._scanner.feed(self._unread)
        self._unread = self._unread[end:]
        if self._scanner.has_ended:
            self._events.append(ParsedCallEnded())
            self._end_call(0)
        return self._scanner.has_ended

    def _read_after_call(self) -> bool:
        """Parse the text after a call: its closing marker, the next call of a list, or text.

        Returns False if that depends on text still to come."""
        stripped = self._unread.lstrip()
        if not stripped:
            return False
        named, close = self._tool_format.named, self._tool_format.close_marker
        try:
            if named is not None and _matches(named.next_begin, self._unread):
                self._is_next = True
                self._markup = ""
                self._state = ToolParser._read_head
                return True
            if _matches(close, self._unread):
                self._unread = self._unread[match_literal(close, self._unread, 0) :]
                self._state = ToolParser._read_text
                return True
        except NeedsMore:
            return False
        if stripped[0] == "]" and self._tool_format.is_array:
            self._unread = stripped[1:]
            if not close:
                self._state = ToolParser._read_text
        elif (stripped[0] in ",{" and self._tool_format.is_array) or (
            stripped[0] == ";" and self._tool_format.allows_bare and named is None
        ):
            skipped = len(self._unread) - len(stripped) + (stripped[0] != "{")
            self._markup = self._unread[:skipped]
            self._unread = self._unread[skipped:]
            self._state = ToolParser._read_head
        elif not self._tool_format.marker:
            self._markup = ""
            self._state = ToolParser._read_head
        else:
            self._is_close_pending = bool(close)
            self._state = ToolParser._read_text
        return True

    # --- transitions ---

    @property
    def _tool_format(self) -> ToolFormat:
        assert self._optional_format is not None
        return self._optional_format

    def _is_tool(self, name: str) -> bool:
        return bool(name) and (
            self._has_marker or self._tool_names is None or name in self._tool_names
        )

    @property
    def _has_marker(self) -> bool:
        """Whether the call has a marker that text cannot have by chance."""
        marker = self._tool_format.marker
        if self._tool_format.allows_bare:
            return bool(marker) and marker in self._markup
        return marker[0] in "<["

    def _start_call(self, name: str, end: int) -> bool:
        self._events.append(ParsedCallStarted(name))
        self._unread = self._unread[end:]
        named = self._tool_format.named
        arguments = JsonArguments() if named is None else named.arguments
        self._reader = make_reader(arguments, partial(self._types_of, name))
        self._is_next = False
        self._state = ToolParser._read_arguments
        return True

    def _end_call(self, end: int) -> None:
        self._unread = self._unread[end:]
        self._is_after_call = True
        self._state = ToolParser._read_after_call

    def _reject_call(self) -> bool:
        """Emit the consumed markup as text, because no call follows it, and continue with text.
        Returns True: the unread text can be parsed at once."""
        self._emit_text(self._markup)
        self._markup = ""
        self._is_next = False
        self._state = ToolParser._read_text
        return True

    def _emit_text(self, text: str) -> None:
        if self._is_after_call:
            text = text.lstrip()
        if text:
            self._is_after_call = False
            self._events.append(ParsedText(text))

    def _take_events(self) -> list[ParsedToolEvent]:
        events, self._events = self._events, []
        return events


def _parse_call(text: str) -> tuple[str, str | None] | None:
    """Parse a call written as one JSON object into (name, arguments as JSON text).

    The arguments are None if missing. Returns None if `text` is not a JSON object with a name.
    """
    try:
        value: object = json.loads(text, strict=False)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    call = cast(dict[str, object], value)
    name = call.get("name", call.get("tool_name"))
    key = "arguments" if "arguments" in call else "parameters"
    arguments = call.get(key)
    if not isinstance(name, str):
        return None
    if isinstance(arguments, str) or arguments is None:
        return name, arguments
    written = {key: text for key, _, text in iter_members(text)}
    return name, keep_json(written[key], arguments)


def _parse_string(quoted: str) -> str | None:
    try:
        return json.loads(quoted)
    except ValueError:
        return None


def _count_overlap(text: str, marker: str) -> int:
    """Return the length of the longest suffix of `text` that is the beginning of `marker`, but not
    the whole marker."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if marker.startswith(text[-length:])), 0)


def _match_word(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    """Match a word that does not end with the text. Raises NeedsMore or NoMatch."""
    found = pattern.match(text, at)
    if found is None:
        raise NoMatch if text[at:].strip() else NeedsMore
    if found.end() == len(text):
        raise NeedsMore
    return found


def _matches(literal: str, text: str) -> bool:
    """Whether `text` begins with a literal that is not empty. Raises NeedsMore."""
    try:
        return match_literal(literal, text, 0) > 0
    except NoMatch:
        return False


def _skip_call_id(mark: str, text: str, at: int) -> int:
    """Skip the id of a call after its name, which may be missing. Raises NeedsMore."""
    try:
        after = match_literal(mark, text, at)
    except NoMatch:
        return at
    return _match_word(_CALL_ID, text, after).end()

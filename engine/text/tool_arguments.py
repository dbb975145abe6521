"""Readers of the arguments of a tool call as they arrive, which return them as JSON text.

    JSON      {"city": "Paris", "days": 3}
    tagged    <parameter=city>\\nParis\\n</parameter>\\n<parameter=days>\\n3\\n</parameter>
    literal   city="Paris", days=3)      city:<|"|>Paris<|"|>,days:3}

Space around tags does not matter, except that a value begins and ends with at most the line break
that the format puts there.
"""

import json
import re
from collections.abc import Callable
from typing import Protocol, cast

from continuo.engine.text.tool_format import (
    Arguments,
    JsonArguments,
    LiteralArguments,
    TaggedArguments,
)
from continuo.engine.text.written_json import keep_json

TypesOf = Callable[[str], frozenset[str] | None]
"""Returns the JSON types that the argument with this name may have. None: any type."""
_KEY_CHARS_MAX = 1024
"""Longest name of an argument; longer text is not one."""
_STRING_ALONE = frozenset(["string"])
_TYPES = frozenset(["string", "number", "integer", "boolean", "object", "array", "null"])
_CONSTANTS: dict[str, object] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}


_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
}
_HEX = "[0-9a-fA-F]"
_ESCAPED_DIGITS = re.compile(
    rf"u(?P<pair>[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
    rf"|x(?P<x>{_HEX}{{2}})|u(?P<u>{_HEX}{{4}})|U(?P<U>00(?:0{_HEX}|10){_HEX}{{4}})"
    r"|(?P<octal>[0-7]{1,3})"
)
"""The escapes of Python that name a character by its code, and the two of JSON that are a pair of
surrogates."""


_AFTER_STRING = re.compile(r"\s*(?:(?P<delimiter>[,:)\]}])|\S)")


class NeedsMore(Exception):
    """The text may still match if more follows."""


class NoMatch(Exception):
    """The text does not match, whatever follows."""


def match_literal(literal: str, text: str, at: int) -> int:
    """Match `literal` in `text` from `at` on, whatever the space between its characters. Returns
    the offset after it. Raises NeedsMore or NoMatch."""
    for letter in literal:
        if letter.isspace():
            continue
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            raise NeedsMore
        if text[at] != letter:
            raise NoMatch
        at += 1
    return at


class ArgumentsReader(Protocol):
    """Reads the arguments of one call."""

    has_ended: bool
    is_broken: bool
    """Whether the arguments ended with text that does not belong to them."""

    def feed(self, text: str, *, is_last: bool = False) -> tuple[int, str]:
        """Read `text`, which begins with what the last call did not consume. `is_last`: no more
        text follows. Returns how many characters are consumed, and the JSON text they amount to."""
        ...


def make_reader(arguments: Arguments, types_of: TypesOf = lambda _key: None) -> ArgumentsReader:
    match arguments:
        case JsonArguments():
            return JsonReader()
        case TaggedArguments():
            return TaggedReader(arguments, types_of)
        case LiteralArguments():
            return LiteralReader(arguments)


class JsonScanner:
    """Finds the end of one JSON object or array that arrives in pieces, by brackets and strings
    alone."""

    def __init__(self, inside: str = "") -> None:
        """`inside`: brackets that are already open when the text begins."""
        self._open_brackets = inside
        self._in_string = False
        self._escaped = False
        self.is_fresh = True
        """Whether no character has been scanned yet."""
        self.has_ended = False
        self.is_broken = False
        """Whether the value ended with a closing bracket that does not match the open one."""

    def feed(self, text: str) -> int:
        """Scan `text`. Returns how many of its characters belong to the value."""
        for at, letter in enumerate(text):
            if self.has_ended:
                return at
            self.is_fresh = False
            self._read(letter)
            if self.is_broken:
                return at
        return len(text)

    def _read(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = letter == "\\"
            self._in_string = letter != '"'
        elif letter == '"':
            self._in_string = True
        elif letter in "{[":
            self._open_brackets += letter
        elif letter in "}]":
            self.is_broken = self._open_brackets[-1:] + letter not in ("{}", "[]")
            self._open_brackets = self._open_brackets[:-1]
            self.has_ended = self.is_broken or not self._open_brackets


class JsonReader:
    """Reads arguments that are one JSON object, and returns its text as it is."""

    def __init__(self) -> None:
        self._scanner = JsonScanner()
        self.has_ended = False
        self.is_broken = False

    def feed(self, text: str, *, is_last: bool = False) -> tuple[int, str]:
        del is_last
        end = self._scanner.feed(text)
        self.has_ended, self.is_broken = self._scanner.has_ended, self._scanner.is_broken
        return end, text[:end]


class TaggedReader:
    """Reads arguments between tags. A value that the schema says is a string is returned as it
    arrives, any other when it is complete."""

    def __init__(self, syntax: TaggedArguments, types_of: TypesOf) -> None:
        self._syntax = syntax
        self._types_of = types_of
        self._value_end = syntax.value_close.strip()
        self._is_in_value = False
        self._types: frozenset[str] | None = None
        self._is_streamed = False
        """Whether a piece of the value was returned."""
        self._is_in_block = False
        self._count = 0
        self.has_ended = False
        self.is_broken = False

    def feed(self, text: str, *, is_last: bool = False) -> tuple[int, str]:
        at, pieces = 0, ""
        while not self.has_ended:
            try:
                read = self._read_value if self._is_in_value else self._read_key
                at, piece = read(text, at, is_last=is_last)
            except NeedsMore:
                break
            pieces += piece
        return at, pieces

    def _read_key(self, text: str, at: int, *, is_last: bool) -> tuple[int, str]:
        try:
            start = match_literal(self._syntax.key_open, text, at)
        except NoMatch:
            return at, self._end()
        except NeedsMore:
            if is_last and not text[at:].strip():
                return len(text), self._end()
            raise
        ends = [
            (found, len(mark.strip()), is_string)
            for mark, is_string in (
                (self._syntax.key_end, True),
                (self._syntax.key_end_other, False),
            )
            if (found := text.find(mark.strip(), start)) >= 0
        ]
        if not ends:
            if len(text) - start > _KEY_CHARS_MAX:
                self.has_ended = self.is_broken = True
                return at, ""
            raise NeedsMore
        found, length, is_string = min(ends)
        key = text[start:found].strip()
        is_told = self._syntax.key_end != self._syntax.key_end_other
        self._types = self._types_of(key)
        if is_told:
            self._types = _STRING_ALONE if is_string else _TYPES - _STRING_ALONE
        self._is_in_value, self._is_streamed = True, False
        opening = "{" if self._count == 0 else ", "
        self._count += 1
        return found + length, f"{opening}{json.dumps(key, ensure_ascii=False)}: "

    def _read_value(self, text: str, at: int, *, is_last: bool) -> tuple[int, str]:
        del is_last
        start = at if self._is_streamed else self._find_value_start(text, at)
        closing = self._syntax.block_close if self._is_in_block else ""
        end = text.find(closing + self._value_end, start)
        if end >= 0:
            value = text[start:end]
            if self._syntax.value_close.startswith("\n") and not self._is_in_block:
                value = value.removesuffix("\n")
            if self._types == _STRING_ALONE:
                opening = "" if self._is_streamed else '"'
                piece = f'{opening}{_escape(value)}"'
            else:
                piece = self._convert(value)
            self._is_in_value = False
            return end + len(closing + self._value_end), piece
        if self._types != _STRING_ALONE:
            raise NeedsMore
        # A line break and the end may follow.
        certain = len(text) - len(closing + self._value_end)
        if certain <= start:
            raise NeedsMore
        opening = "" if self._is_streamed else '"'
        self._is_streamed = True
        return certain, opening + _escape(text[start:certain])

    def _find_value_start(self, text: str, at: int) -> int:
        """Find where the value begins: after the line break that the format puts there, and the
        text that opens a block. Raises NeedsMore."""
        if self._syntax.key_end.endswith("\n"):
            if at == len(text):
                raise NeedsMore
            at += text[at] == "\n"
        opening = self._syntax.block_open
        self._is_in_block = bool(opening) and text.startswith(opening, at)
        if not self._is_in_block and opening.startswith(text[at:]) and opening:
            raise NeedsMore
        return at + len(opening) * self._is_in_block

    def _convert(self, text: str) -> str:
        """Convert a value that is not certain to be a string to JSON."""
        try:
            value = _parse_value(text)
        except (ValueError, RecursionError):
            value = text
        if self._types is not None and "string" in self._types:
            value = value if _type_of(value) & self._types else text
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        return keep_json(text, value)

    def _end(self) -> str:
        self.has_ended = True
        return "}" if self._count else "{}"


class LiteralReader:
    """Reads arguments written as literals. Each is returned when it is complete."""

    def __init__(self, syntax: LiteralArguments) -> None:
        self._syntax = syntax
        self._quotes = tuple(dict.fromkeys((syntax.quote, '"', "'")))
        self._count = 0
        self._key: str | None = None
        self._scanned = 0
        """Number of characters of the value that were scanned for its end."""
        self._open_brackets = ""
        self._open_quote = ""
        self.has_ended = False
        self.is_broken = False

    def feed(self, text: str, *, is_last: bool = False) -> tuple[int, str]:
        del is_last
        at, pieces = 0, ""
        while not self.has_ended:
            try:
                read = self._read_key if self._key is None else self._read_value
                at, piece = read(text, at)
            except NeedsMore:
                break
            except NoMatch:
                self.has_ended = self.is_broken = True
                break
            pieces += piece
        return at, pieces

    def _read_key(self, text: str, at: int) -> tuple[int, str]:
        try:
            end = match_literal(self._syntax.close, text, at)
        except NoMatch:
            pass
        else:
            self.has_ended = True
            return end, "}" if self._count else "{}"
        if self._count:
            at = match_literal(self._syntax.separator, text, at)
        end = text.find(self._syntax.assign, at)
        if end < 0:
            if len(text) - at > _KEY_CHARS_MAX:
                raise NoMatch
            raise NeedsMore
        self._key = text[at:end].strip().strip("\"'")
        self._scanned, self._open_brackets, self._open_quote = 0, "", ""
        return end + len(self._syntax.assign), ""

    def _read_value(self, text: str, at: int) -> tuple[int, str]:
        end = self._find_value_end(text, at)
        source = text[at:end].strip()
        try:
            value = _LiteralParser(source, self._quotes).parse()
        except (ValueError, RecursionError):
            value = source
        opening = "{" if self._count == 0 else ", "
        pair = json.dumps({self._key: value}, ensure_ascii=False)
        self._count, self._key = self._count + 1, None
        return end, opening + pair[1:-1]

    def _find_value_end(self, text: str, start: int) -> int:
        """Find where the value ends: before a separator or a closing bracket that belongs to the
        call."""
        at = start + self._scanned
        while at < len(text):
            if self._open_quote:
                length = self._measure_quoted(text, at)
                if not length:
                    break
                at += length
                continue
            quote = next((q for q in self._quotes if text.startswith(q, at)), "")
            if quote:
                self._open_quote = quote
                at += len(quote)
                continue
            if any(quote.startswith(text[at:]) for quote in self._quotes):
                break
            letter = text[at]
            if letter in "([{":
                self._open_brackets += letter
            elif letter in ")]}" and self._open_brackets:
                self._open_brackets = self._open_brackets[:-1]
            elif letter in ")]}" or (
                not self._open_brackets and letter == self._syntax.separator.strip()
            ):
                return at
            at += 1
        self._scanned = min(at, len(text)) - start
        if at > len(text):
            self._scanned -= 1  # a backslash whose character has not arrived
        raise NeedsMore

    def _measure_quoted(self, text: str, at: int) -> int:
        """Count the characters of the open string that can be read at `at`, which may end it. None
        can before the text after a quote has arrived."""
        quote = self._open_quote
        if text[at] == "\\" and len(quote) == 1:
            return 2
        if not text.startswith(quote, at):
            return 0 if quote.startswith(text[at:]) else 1
        after = _AFTER_STRING.match(text, at + len(quote))
        if after is None:
            return 0
        if after["delimiter"]:
            self._open_quote = ""
        return len(quote)


class _LiteralParser:
    """Parses one literal: JSON, Python's, or one with other quotes and bare keys."""

    def __init__(self, text: str, quotes: tuple[str, ...]) -> None:
        self._text = text
        self._quotes = quotes
        self._at = 0

    def parse(self) -> object:
        """Parse the whole text. Raises ValueError."""
        value = self._read_value()
        self._skip_space()
        if self._at < len(self._text):
            raise ValueError("text after the value")
        return value

    def _skip_space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _accept(self, token: str) -> bool:
        self._skip_space()
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _read_value(self) -> object:
        self._skip_space()
        for quote in self._quotes:
            if self._accept(quote):
                return self._read_string(quote)
        if self._accept("{"):
            return self._read_object()
        for opening, closing in (("[", "]"), ("(", ")")):
            if self._accept(opening):
                return self._read_array(closing)
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in ",]})":
            self._at += 1
        word = self._text[start : self._at].strip()
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        return _parse_number(word)

    def _read_string(self, quote: str) -> str:
        parts: list[str] = []
        while not self._ends_string(quote):
            if self._at >= len(self._text):
                raise ValueError("unfinished string")
            letter = self._text[self._at]
            self._at += 1
            if letter == "\\" and len(quote) == 1:
                letter = self._read_escape(quote)
            parts.append(letter)
        self._at += len(quote)
        return "".join(parts)

    def _ends_string(self, quote: str) -> bool:
        """Whether a string ends here: at a quote before a delimiter or the end. Some templates, and
        their models, do not escape a quote within a string (`'it's'`)."""
        if not self._text.startswith(quote, self._at):
            return False
        after = _AFTER_STRING.match(self._text, self._at + len(quote))
        return after is None or bool(after["delimiter"])

    def _read_escape(self, quote: str) -> str:
        """Read an escape after its backslash, as Python does: one that is unknown, or lacks digits,
        keeps its backslash. `\\/` in double quotes is JSON's."""
        letter = self._text[self._at : self._at + 1]
        if not letter:
            raise ValueError("unfinished string")
        digits = _ESCAPED_DIGITS.match(self._text, self._at)
        if digits is not None:
            self._at = digits.end()
            return _decode_digits(digits)
        self._at += 1
        if letter == "/" and quote == '"':
            return letter
        return _ESCAPES.get(letter, "\\" + letter)

    def _read_object(self) -> dict[str, object]:
        found: dict[str, object] = {}
        while not self._accept("}"):
            if found and not self._accept(","):
                raise ValueError("expected a comma")
            self._skip_space()
            quote = next((q for q in self._quotes if self._accept(q)), None)
            if quote is not None:
                key = self._read_string(quote)
                self._skip_space()
                if not self._accept(":"):
                    raise ValueError("expected a colon")
            else:
                end = self._text.find(":", self._at)
                if end < 0:
                    raise ValueError("expected a key")
                key, self._at = self._text[self._at : end].strip(), end + 1
            found[key] = self._read_value()
        return found

    def _read_array(self, closing: str) -> list[object]:
        found: list[object] = []
        while not self._accept(closing):
            if found and not self._accept(","):
                raise ValueError("expected a comma")
            found.append(self._read_value())
        return found


def _type_of(value: object) -> frozenset[str]:
    """Return the JSON types that a value has."""
    match value:
        case None:
            return frozenset(["null"])
        case bool():
            return frozenset(["boolean"])
        case int():
            return frozenset(["integer", "number"])
        case float():
            return frozenset(["number", *(["integer"] if value.is_integer() else [])])
        case str():
            return _STRING_ALONE
        case list():
            return frozenset(["array"])
        case _:
            return frozenset(["object"])


def find_types(schema: object) -> frozenset[str] | None:
    """Find the JSON types that a schema allows. Returns None if they are not known."""
    if not isinstance(schema, dict):
        return None
    fields = cast(dict[str, object], schema)
    kind = fields.get("type")
    if isinstance(kind, str):
        return frozenset([kind])
    if isinstance(kind, list):
        return frozenset(str(each) for each in cast(list[object], kind))
    if "const" in fields:
        return _type_of(fields["const"])
    if isinstance(fields.get("enum"), list):
        return frozenset[str]().union(*map(_type_of, cast(list[object], fields["enum"])))
    for key in ("anyOf", "oneOf"):
        if isinstance(fields.get(key), list):
            found = [find_types(each) for each in cast(list[object], fields[key])]
            if found and all(each is not None for each in found):
                return frozenset[str]().union(*(each or () for each in found))
    return None


def _parse_value(text: str) -> object:
    """Parse a value that is JSON or a Python literal. Raises ValueError."""
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return _LiteralParser(text, ("'", '"')).parse()


def _parse_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("not a number") from None
        return value


def _decode_digits(found: re.Match[str]) -> str:
    """Decode an escape of digits. Half of a surrogate pair becomes U+FFFD."""
    if found["pair"]:
        return json.loads(f'"\\u{found["pair"]}"')
    base = 8 if found["octal"] else 16
    code = int(found[str(found.lastgroup)], base)
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]

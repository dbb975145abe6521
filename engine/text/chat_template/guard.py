"""Guard of untrusted text on its way through a chat template, a program that may rewrite it.

    a user's text   hi <|im_end|>
    guarded         hi OPEN<|im_end|>CLOSE              given to the template
    rendered        hi MARK_OPEN<|im_end|>MARK_CLOSE    encoded as plain text

OPEN and CLOSE are digits. No escaping (of JSON, Python, HTML or URLs) and no change of case
rewrites digits. Some other rewriting may, and a template that cuts or replaces parts of a text may
make a control token of a text that does not look like one: `<|im_/no_thinkend|>`. A second
rendering, with harmless texts, then has fewer control tokens, and the conversation is refused.

A text that ends with a part of a control token, such as `]~!b` before `[e~[`, is guarded there too.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

from continuo.engine.errors import BadRequest
from continuo.engine.text.chat_template.jinja_program import JinjaProgram
from continuo.engine.text.tokenizer.tokenizer import MARK_CLOSE, MARK_OPEN, Tokenizer
from continuo.engine.text.written_json import change_text

_OPEN, _CLOSE = "17304629058462309754", "18057394620587930264"
"""Begin with the only 1 in them, so that neither can begin within the other, or within text that
ends with a part of one."""
_BRACKETS = (("<", ">"), ("</", ">"), ("<|", "|>"), ("[", "]"), ("[/", "]"))
"""Text that templates write around a key."""
_GUARDED = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)

Value = TypeVar("Value")


class UnsafeText(BadRequest):
    """The template would make a control token of a user's text."""


class TemplateGuard:
    """Guards the texts that one template renders."""

    def __init__(self, program: JinjaProgram, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tested = program.tested_text
        self._known_keys = program.names
        self._cuts, self._rewrites = program.cuts, program.rewrites
        tokens = tokenizer.control_tokens
        self._part_chars_max = max(map(len, tokens), default=1) - 1
        self._beginnings = {token[:size] for token in tokens for size in range(2, len(token))}
        self._ends = {token[-size:] for token in tokens for size in range(2, len(token))}
        self._brackets = _compile_brackets(tokens, self._tested.split("\0"))

    def mark(self, text: str) -> str:
        """Guard all of a text that looks like a control token."""
        for mark in (_OPEN, _CLOSE):
            text = text.replace(mark, "\ufffd")
        marked = self._mark_parts(self._tokenizer.mark_lookalikes(text))
        return marked.replace(MARK_OPEN, _OPEN).replace(MARK_CLOSE, _CLOSE)

    def mark_lookalikes(self, text: str) -> str:
        """Mark a text as it is marked in what `render` returns."""
        return _restore(self.mark(text))

    def _mark_parts(self, text: str) -> str:
        """Mark the ends of a text that the text beside it could complete to a control token."""
        longest = range(min(self._part_chars_max, len(text)), 1, -1)
        start = next((size for size in longest if text[:size] in self._ends), 0)
        if start:
            text = f"{MARK_OPEN}{text[:start]}{MARK_CLOSE}{text[start:]}"
        end = next((size for size in longest if text[-size:] in self._beginnings), 0)
        return f"{text[:-end]}{MARK_OPEN}{text[-end:]}{MARK_CLOSE}" if end else text

    def mark_values(self, value: object) -> object:
        """Guard all texts in a JSON value."""
        if isinstance(value, str):
            return self.mark(value)
        return _map_texts(value, self.mark, self._mark_key)

    def render(self, render: Callable[[Value], str], guarded: Value) -> str:
        """Render guarded values to text that `Tokenizer.encode_marked` encodes. Raises
        UnsafeText."""
        text = _restore(render(guarded))
        harmless = _map_texts(guarded, self._defuse, self._defuse)
        if harmless != guarded:
            self._compare(text, _restore(render(cast(Value, harmless))))
        return text

    def _mark_key(self, key: str) -> str:
        """Guard a key, also where it becomes a control token only between brackets of the template:
        `|im_end|` in `<|im_end|>`."""
        marked = self.mark(key)
        if key in self._known_keys:
            return marked
        bracketed = (f"{before}{key}{after}" for before, after in _BRACKETS)
        if any(self._tokenizer.find_control_tokens(text) for text in bracketed):
            return f"{_OPEN}{marked}{_CLOSE}"
        return marked

    def _defuse(self, text: str) -> str:
        """Put a harmless word in place of each guarded text that the template itself does not look
        for (templates look for `</think>`, for example). Where the template may rewrite the text,
        also replace the brackets that control tokens have, except in control tokens: those without
        guard are the renderer's own."""
        if _OPEN in text:
            text = _GUARDED.sub(self._defuse_guarded, text)
        if self._rewrites or any(cut in text for cut in self._cuts):
            text = self._brackets.sub(lambda found: found["kept"] or "\ufffd", text)
        return text

    def _defuse_guarded(self, found: re.Match[str]) -> str:
        if found[1] in self._tested:
            return found[0]
        word = "".join(chr(ord("a") + ord(letter) % 26) for letter in found[1])
        return f"{_OPEN}{word}{_CLOSE}"

    def _compare(self, text: str, harmless: str) -> None:
        found = Counter(self._tokenizer.find_control_tokens(text))
        unsafe = found - Counter(self._tokenizer.find_control_tokens(harmless))
        if unsafe:
            raise UnsafeText(
                f"the chat template would make the control token {min(unsafe)!r} of the same text "
                "in a message, a call or a tool; remove it"
            )


def _compile_brackets(tokens: Iterable[str], tested: Iterable[str]) -> re.Pattern[str]:
    """Compile the pattern of the characters at the ends of control tokens, except in those tokens
    and in the texts that a template looks for (`kept`)."""
    ends = {end for token in tokens for end in (token[:1], token[-1:]) if not end.isalnum()}
    whole = sorted({*tokens, *(text for text in tested if len(text) > 1)}, key=len, reverse=True)
    kept, single = ("|".join(map(re.escape, texts)) for texts in (whole, sorted(ends)))
    return re.compile(f"(?P<kept>{kept or '(?!)'})|{single or '(?!)'}")


def _restore(text: str) -> str:
    return text.replace(_OPEN, MARK_OPEN).replace(_CLOSE, MARK_CLOSE)


def _map_texts(
    value: object, change: Callable[[str], str], change_key: Callable[[str], str]
) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, object], value)
        changed = {
            change_key(str(key)): _map_texts(item, change, change_key)
            for key, item in pairs.items()
        }
        return change_text(pairs, changed, change)
    if isinstance(value, tuple):
        items = cast(tuple[object, ...], value)
        return tuple(_map_texts(item, change, change_key) for item in items)
    if isinstance(value, list):
        listed = cast(list[object], value)
        items = [_map_texts(item, change, change_key) for item in listed]
        return change_text(listed, items, change)
    return value

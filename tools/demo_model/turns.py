"""Types of the turns of a conversation and of the conditions on right answers, independent of
wordings."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""A chat message in the form that chat templates of ``transformers`` take.

``cut``: the user interrupted the answer, so that training must not learn to end it there.
"""

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Expect:
    """Conditions on a right answer; every field that is set must hold.

    ``exact``: the text, up to letter case and final punctuation; ``has``: regular expressions, each
    found anywhere in the answer; ``call``: the tool call ``{"name": ..., "arguments": ...}``. If
    ``call`` is set, nothing else is checked; otherwise the answer must not contain a call.
    """

    exact: str | None = None
    has: tuple[str, ...] = ()
    words_min: int = 0
    words_max: int = 10_000
    call: dict[str, Any] | None = None

    def holds(self, answer: str) -> bool:
        """Whether `answer` meets the conditions."""
        if self.call is not None:
            return _call_of(answer) == self.call
        if "<tool_call>" in answer:
            return False
        if self.exact is not None and _bare(answer) != _bare(self.exact):
            return False
        words = len(answer.split())
        if not self.words_min <= words <= self.words_max:
            return False
        return all(re.search(pattern, answer, re.IGNORECASE) for pattern in self.has)


def _bare(text: str) -> str:
    return text.strip().rstrip(".!?").casefold()


def _call_of(answer: str) -> dict[str, Any] | None:
    found = _CALL.search(answer)
    try:
        return json.loads(found[1]) if found else None
    except ValueError:
        return None


@dataclass(frozen=True)
class Turn:
    """A user message and all messages up to the model's final answer, tool calls included.

    ``expects`` has the conditions on each assistant message, in order; ``told`` has the values of
    the facts that the user states in this turn, by the key of their kind.
    """

    skill: str
    messages: tuple[Message, ...]
    expects: tuple[Expect, ...]
    told: dict[str, str] = field(default_factory=dict)


def exchange(skill: str, user: str, answer: str, expect: Expect) -> Turn:
    """Make a turn of one message of the user and one answer of the model."""
    messages = ({"role": "user", "content": user}, {"role": "assistant", "content": answer})
    return Turn(skill, messages, (expect,))


def has_word(value: str) -> str:
    """Return a regular expression for ``Expect.has`` that finds `value` as a whole word."""
    return rf"(?<!\w){re.escape(value)}(?!\w)"


def cut_short(turn: Turn, answer: str) -> Turn:
    """Return a turn of which the user heard only `answer`, the beginning of the model's answer."""
    user, said = turn.messages
    return Turn(turn.skill, (user, {**said, "content": answer, "cut": True}), (Expect(),))

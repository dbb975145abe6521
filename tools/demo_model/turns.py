"""One exchange of a conversation and what a right answer to it is; knows no wording."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""A chat message in the form ``transformers`` chat templates take."""

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Expect:
    """What an answer must be; every field that is set must hold.

    ``exact`` ignores letter case and a closing mark; ``has`` are regular expressions, found
    anywhere; ``call`` is the tool call as ``{"name": ..., "arguments": ...}``.
    """

    exact: str | None = None
    has: tuple[str, ...] = ()
    words_min: int = 0
    words_max: int = 10_000
    call: dict[str, Any] | None = None

    def holds(self, answer: str) -> bool:
        """Whether an answer is right."""
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
    """A user message and all that follows until the model has answered it.

    ``expects`` has one entry for each assistant message, in order.
    """

    skill: str
    messages: tuple[Message, ...]
    expects: tuple[Expect, ...]
    told: dict[str, str] = field(default_factory=dict)


def exchange(skill: str, user: str, answer: str, expect: Expect) -> Turn:
    """The plain case: one message each way."""
    messages = ({"role": "user", "content": user}, {"role": "assistant", "content": answer})
    return Turn(skill, messages, (expect,))


def has_word(value: str) -> str:
    """A pattern for a value that stands alone, as in ``Expect.has``."""
    return rf"(?<!\w){re.escape(value)}(?!\w)"

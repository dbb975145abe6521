"""Where the messages of a conversation meet, in text. Knows no ids, but where ids part cleanly.

A chat template is a program, so nothing about it is assumed. When it is loaded it writes short
conversations with contents we can find again (WORDS). What stands behind the last content shows how
a message closes; the part that is the same whatever follows belongs to the message, the rest is
held back until it is known what follows (Qwen writes the results of several calls in one block).
Later each message is written behind such a short conversation, and only what is new is taken.
"""

from collections.abc import Sequence

from continuo.engine.errors import BadRequest, ModelError
from continuo.engine.text.chat_template.message import Message, Role, Tool, ToolCall
from continuo.engine.text.chat_template.renderer import Writer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

WORDS: dict[Role, str] = {
    "system": "zq9system9qz",
    "user": "zq9user9qz",
    "assistant": "zq9assistant9qz",
    "tool": "zq9tool9qz",
}
"""Contents that no template writes itself, that need no trimming and survive JSON."""

SYSTEM = Message(role="system", content=WORDS["system"])
USER = Message(role="user", content=WORDS["user"])
ASSISTANT = Message(role="assistant", content=WORDS["assistant"])
CALL = Message(
    role="assistant", tool_calls=(ToolCall(name="look", arguments="{}", id="call00000"),)
)
TOOL = Message(role="tool", content=WORDS["tool"], tool_call_id="call00000")

_SHORT: dict[Role, tuple[tuple[Message, ...], ...]] = {
    "system": ((SYSTEM,), (USER, ASSISTANT, SYSTEM)),
    "user": ((USER,), (SYSTEM, USER)),
    "assistant": ((USER, ASSISTANT), (SYSTEM, USER, ASSISTANT)),
    "tool": ((USER, CALL, TOOL), (USER, ASSISTANT, TOOL)),
}
"""Conversations that end in a message of the role, likeliest first."""

_NEXT: tuple[Message, ...] = (
    Message(role="user", content="next"),
    Message(role="assistant", content="next"),
    CALL,
    Message(role="tool", content="next", tool_call_id="call00000"),
    Message(role="system", content="next"),
)


class Seams:
    """The seams of one template, found when it is loaded."""

    def __init__(self, writer: Writer, tokenizer: Tokenizer) -> None:
        """Raises ModelError if the template does not even write out a question and an answer."""
        self._writer = writer
        self._tokenizer = tokenizer
        self._short: dict[Role, tuple[Message, ...]] = {
            role: short for role in WORDS if (short := self._find_short(role))
        }
        if not {"user", "assistant"} <= self._short.keys():
            raise ModelError("chat template: it does not write out what user and assistant say")
        self._endings = {role: self._find_ending(role) for role in self._short}
        self._opening = self._find_opening()

    def closing(self, role: Role) -> str:
        """What is certain to follow the content of a message."""
        return self._endings[role][0]

    def settled(self, text: str, role: Role) -> str:
        """`text`, which ends with a last message of `role`, without what is held back."""
        held = self._endings[role][1] if role in self._endings else ""
        return text.removesuffix(held)

    def head(self, system: str | None, tools: Sequence[Tool]) -> str:
        """What stands before the first message, as far as it is the same whatever that is."""
        before, found, _ = self._writer.write([*_lead(system), USER], tools).rpartition(
            USER.content
        )
        assert found, "the probe's content was found when the template was loaded"
        if self._opening and before.endswith(self._opening):
            return before.removesuffix(self._opening)
        return before[: self._tokenizer.last_border(before)]

    def first(self, message: Message, system: str | None, tools: Sequence[Tool]) -> str:
        """What the first message adds to the head."""
        head = self.head(system, tools)
        text = self._writer.attempt([*_lead(system), message], tools)
        if text is not None and text.startswith(head):
            return text[len(head) :]
        return self.after("user" if message.role == "assistant" else "assistant", message)

    def after(self, previous: Role, message: Message | None) -> str:
        """What `message` (None: the assistant's header) adds behind a message of role `previous`,
        together with what that one held back. Where the template refuses that, what it adds behind
        another one, and a system message as a user's. Raises BadRequest."""
        known = message is None or message.role in self._short
        for role in (previous, *self._short) if known else ():
            if role in self._short and (text := self._behind(role, message)) is not None:
                return text
        if message is not None and message.role == "system":
            return self.after(previous, Message(role="user", content=message.content))
        raise BadRequest("the model's chat template has no place for this message", field="role")

    def _behind(self, role: Role, message: Message | None) -> str | None:
        short = self._short[role]
        if message is None:
            text = self._writer.attempt(short, add_generation_prompt=True)
        else:
            text = self._writer.attempt([*short, message])
        closing = self.closing(role)
        tail = _tail(text or "", role)
        return tail[len(closing) :] if text is not None and tail.startswith(closing) else None

    def _find_short(self, role: Role) -> tuple[Message, ...] | None:
        for messages in _SHORT[role]:
            text = self._writer.attempt(messages)
            if text is not None and WORDS[role] in text:
                return messages
        return None

    def _find_ending(self, role: Role) -> tuple[str, str]:
        """What stands behind the content of a last message: the part that is the same whatever
        follows, and the rest."""
        short = self._short[role]
        tail = _tail(self._writer.write(short), role)
        following = [self._writer.attempt([*short, message]) for message in _NEXT]
        following.append(self._writer.attempt(short, add_generation_prompt=True))
        certain = _common([tail, *(_tail(text, role) for text in following if text is not None)])
        return certain, tail[len(certain) :]

    def _find_opening(self) -> str:
        """How a user message opens, as far as it is the same in all places; "" if not known."""
        user = USER.content
        first = self._writer.write(self._short["user"]).rpartition(user)[0]
        alone = self._writer.attempt([SYSTEM]) or ""
        second = (self._writer.attempt([SYSTEM, USER]) or "").rpartition(user)[0]
        if SYSTEM.content in alone and second.startswith(alone):
            opening = second[len(alone) :]
        else:
            later = self._writer.attempt([USER, ASSISTANT, USER]) or ""
            opening = _tail(later.rpartition(user)[0], "assistant")
        opening = _common([opening[::-1], first[::-1]])[::-1]
        return opening if self._tokenizer.parts_at(first, len(first) - len(opening)) else ""


def _lead(system: str | None) -> list[Message]:
    return [] if system is None else [Message(role="system", content=system)]


def _tail(text: str, role: Role) -> str:
    """What stands behind the probe's content; at its first place, for a later one is a joke."""
    return text.partition(WORDS[role])[2]


def _common(texts: Sequence[str]) -> str:
    """The longest beginning that all `texts` share."""
    first, last = min(texts), max(texts)
    same = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]

"""Where the messages of a conversation meet, in text. Knows no ids, but where ids part cleanly.

A chat template is a program, so nothing about it is assumed. When it is loaded it writes short
conversations with contents we can find again (WORDS). What stands behind the last content shows how
a message closes; the part that is the same whatever follows belongs to the message, the rest is
held back until it is known what follows (Qwen writes the results of several calls in one block).
Later each message is written behind such a short conversation, and only what is new is taken.
"""

from collections.abc import Sequence

from continuo.engine.errors import BadRequest, ModelError
from continuo.engine.text.chat_template.message import (
    ChatMessage,
    ChatRole,
    ToolCall,
    ToolDefinition,
)
from continuo.engine.text.chat_template.renderer import TemplateRenderer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

PROBE_CONTENTS: dict[ChatRole, str] = {
    "system": "zq9system9qz",
    "user": "zq9user9qz",
    "assistant": "zq9assistant9qz",
    "tool": "zq9tool9qz",
}
"""Contents that no template writes itself, that need no trimming and survive JSON."""

PROBE_SYSTEM = ChatMessage(role="system", content=PROBE_CONTENTS["system"])
PROBE_USER = ChatMessage(role="user", content=PROBE_CONTENTS["user"])
PROBE_ASSISTANT = ChatMessage(role="assistant", content=PROBE_CONTENTS["assistant"])
PROBE_CALL = ChatMessage(
    role="assistant", tool_calls=(ToolCall(name="look", arguments="{}", id="call00000"),)
)
PROBE_TOOL_RESULT = ChatMessage(
    role="tool", content=PROBE_CONTENTS["tool"], tool_call_id="call00000"
)

_PREFIX_CONVERSATIONS: dict[ChatRole, tuple[tuple[ChatMessage, ...], ...]] = {
    "system": ((PROBE_SYSTEM,), (PROBE_USER, PROBE_ASSISTANT, PROBE_SYSTEM)),
    "user": ((PROBE_USER,), (PROBE_SYSTEM, PROBE_USER)),
    "assistant": ((PROBE_USER, PROBE_ASSISTANT), (PROBE_SYSTEM, PROBE_USER, PROBE_ASSISTANT)),
    "tool": (
        (PROBE_USER, PROBE_CALL, PROBE_TOOL_RESULT),
        (PROBE_USER, PROBE_ASSISTANT, PROBE_TOOL_RESULT),
    ),
}
"""Conversations that end in a message of the role, likeliest first."""

_FOLLOWING_MESSAGES: tuple[ChatMessage, ...] = (
    ChatMessage(role="user", content="next"),
    ChatMessage(role="assistant", content="next"),
    PROBE_CALL,
    ChatMessage(role="tool", content="next", tool_call_id="call00000"),
    ChatMessage(role="system", content="next"),
)


class TemplateProbe:
    """The seams of one template, found when it is loaded."""

    def __init__(self, renderer: TemplateRenderer, tokenizer: Tokenizer) -> None:
        """Raises ModelError if the template does not even write out a question and an answer."""
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._prefixes: dict[ChatRole, tuple[ChatMessage, ...]] = {
            role: short for role in PROBE_CONTENTS if (short := self._find_prefix(role))
        }
        if not {"user", "assistant"} <= self._prefixes.keys():
            raise ModelError("chat template: it does not write out what user and assistant say")
        self._endings = {role: self._find_ending(role) for role in self._prefixes}
        self._opening = self._find_opening()

    def closing(self, role: ChatRole) -> str:
        """What is certain to follow the content of a message."""
        return self._endings[role][0]

    def strip_unsettled(self, text: str, role: ChatRole) -> str:
        """`text`, which ends with a last message of `role`, without what is held back."""
        held = self._endings[role][1] if role in self._endings else ""
        return text.removesuffix(held)

    def render_head(self, system: str | None, tools: Sequence[ToolDefinition]) -> str:
        """What stands before the first message, as far as it is the same whatever that is."""
        before, found, _ = self._renderer.render(
            [*_system_messages(system), PROBE_USER], tools
        ).rpartition(PROBE_USER.content)
        assert found, "the probe's content was found when the template was loaded"
        if self._opening and before.endswith(self._opening):
            return before.removesuffix(self._opening)
        return before[: self._tokenizer.find_last_border(before)]

    def render_first(
        self, message: ChatMessage, system: str | None, tools: Sequence[ToolDefinition]
    ) -> str:
        """What the first message adds to the head."""
        head = self.render_head(system, tools)
        text = self._renderer.try_render([*_system_messages(system), message], tools)
        if text is not None and text.startswith(head):
            return text[len(head) :]
        return self.render_after("user" if message.role == "assistant" else "assistant", message)

    def render_after(self, previous: ChatRole, message: ChatMessage | None) -> str:
        """What `message` (None: the assistant's header) adds behind a message of role `previous`,
        together with what that one held back. Where the template refuses that, what it adds behind
        another one, and a system message as a user's. Raises BadRequest."""
        known = message is None or message.role in self._prefixes
        for role in (previous, *self._prefixes) if known else ():
            if role in self._prefixes and (text := self._render_behind(role, message)) is not None:
                return text
        if message is not None and message.role == "system":
            return self.render_after(previous, ChatMessage(role="user", content=message.content))
        raise BadRequest("the model's chat template has no place for this message", field="role")

    def _render_behind(self, role: ChatRole, message: ChatMessage | None) -> str | None:
        short = self._prefixes[role]
        if message is None:
            text = self._renderer.try_render(short, add_generation_prompt=True)
        else:
            text = self._renderer.try_render([*short, message])
        closing = self.closing(role)
        tail = _text_after_probe(text or "", role)
        return tail[len(closing) :] if text is not None and tail.startswith(closing) else None

    def _find_prefix(self, role: ChatRole) -> tuple[ChatMessage, ...] | None:
        for messages in _PREFIX_CONVERSATIONS[role]:
            text = self._renderer.try_render(messages)
            if text is not None and PROBE_CONTENTS[role] in text:
                return messages
        return None

    def _find_ending(self, role: ChatRole) -> tuple[str, str]:
        """What stands behind the content of a last message: the part that is the same whatever
        follows, and the rest."""
        short = self._prefixes[role]
        tail = _text_after_probe(self._renderer.render(short), role)
        following = [
            self._renderer.try_render([*short, message]) for message in _FOLLOWING_MESSAGES
        ]
        following.append(self._renderer.try_render(short, add_generation_prompt=True))
        certain = _common_prefix(
            [tail, *(_text_after_probe(text, role) for text in following if text is not None)]
        )
        return certain, tail[len(certain) :]

    def _find_opening(self) -> str:
        """How a user message opens, as far as it is the same in all places; "" if not known."""
        user = PROBE_USER.content
        first = self._renderer.render(self._prefixes["user"]).rpartition(user)[0]
        alone = self._renderer.try_render([PROBE_SYSTEM]) or ""
        second = (self._renderer.try_render([PROBE_SYSTEM, PROBE_USER]) or "").rpartition(user)[0]
        if PROBE_SYSTEM.content in alone and second.startswith(alone):
            opening = second[len(alone) :]
        else:
            later = self._renderer.try_render([PROBE_USER, PROBE_ASSISTANT, PROBE_USER]) or ""
            opening = _text_after_probe(later.rpartition(user)[0], "assistant")
        opening = _common_prefix([opening[::-1], first[::-1]])[::-1]
        return (
            opening if self._tokenizer.splits_cleanly_at(first, len(first) - len(opening)) else ""
        )


def _system_messages(system: str | None) -> list[ChatMessage]:
    return [] if system is None else [ChatMessage(role="system", content=system)]


def _text_after_probe(text: str, role: ChatRole) -> str:
    """What stands behind the probe's content; at its first place, for a later one is a joke."""
    return text.partition(PROBE_CONTENTS[role])[2]


def _common_prefix(texts: Sequence[str]) -> str:
    """The longest beginning that all `texts` share."""
    first, last = min(texts), max(texts)
    same = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]

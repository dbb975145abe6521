"""Learn where messages begin and end in the text of a chat template, by rendering test
conversations.

A chat template is a program, so nothing about it is assumed. On loading, the probe renders short
conversations whose contents can be found again in the output (PROBE_CONTENTS). The text after the
last content shows how a message closes:

    content  closing   unsettled
    ─────────┼─────────┼─────────▶
             │         └ depends on the next message: held back until that is known (Qwen writes
             │           the results of several calls in one block)
             └ the same whatever follows: belongs to the message

Later, each message is rendered after such a short conversation, and only the new text is taken.
The tokenizer is used only to find where text splits cleanly into ids: where no token contains
characters of both sides.
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
"""Message contents that no template emits by itself, and that neither trimming nor JSON encoding
changes."""

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
"""By role, test conversations that end in a message of that role; those that most templates accept
come first."""

_FOLLOWING_MESSAGES: tuple[ChatMessage, ...] = (
    ChatMessage(role="user", content="next"),
    ChatMessage(role="assistant", content="next"),
    PROBE_CALL,
    ChatMessage(role="tool", content="next", tool_call_id="call00000"),
    ChatMessage(role="system", content="next"),
)


class TemplateProbe:
    """The text that one template puts between messages, found by rendering test conversations when
    the template is loaded."""

    def __init__(self, renderer: TemplateRenderer, tokenizer: Tokenizer) -> None:
        """Probe the template.

        Raises ModelError if the template does not render a user message and a reply.
        """
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._prefixes: dict[ChatRole, tuple[ChatMessage, ...]] = {
            role: prefix for role in PROBE_CONTENTS if (prefix := self._find_prefix(role))
        }
        if not {"user", "assistant"} <= self._prefixes.keys():
            raise ModelError("chat template: user and assistant messages are not rendered")
        self._endings = {role: self._find_ending(role) for role in self._prefixes}
        self._opening = self._find_opening()

    def closing(self, role: ChatRole) -> str:
        """Return the text that closes a message of `role` after its content, independent of the
        next message."""
        return self._endings[role][0]

    def strip_unsettled(self, text: str, role: ChatRole) -> str:
        """Remove from `text`, which ends with a message of `role`, the ending that depends on the
        next message."""
        unsettled = self._endings[role][1] if role in self._endings else ""
        return text.removesuffix(unsettled)

    def render_head(self, system: str | None, tools: Sequence[ToolDefinition]) -> str:
        """Render the head (system text and tools), without any ending that depends on the first
        message."""
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
        """Render the text that the first message adds to the head."""
        head = self.render_head(system, tools)
        text = self._renderer.try_render([*_system_messages(system), message], tools)
        if text is not None and text.startswith(head):
            return text[len(head) :]
        return self.render_after("user" if message.role == "assistant" else "assistant", message)

    def render_after(self, previous: ChatRole, message: ChatMessage | None) -> str:
        """Render the text that `message` (None: the assistant's header) adds after a message of
        role `previous`, including the unsettled ending of that previous message.

        If the template refuses this order of roles, renders `message` after a message of another
        role; if it refuses every order, renders a system message as a user message. Raises
        BadRequest if the template refuses that too.
        """
        known = message is None or message.role in self._prefixes
        for role in (previous, *self._prefixes) if known else ():
            if role in self._prefixes and (text := self._try_after(role, message)) is not None:
                return text
        if message is not None and message.role == "system":
            return self.render_after(previous, ChatMessage(role="user", content=message.content))
        raise BadRequest("the model's chat template has no place for this message", field="role")

    def _try_after(self, role: ChatRole, message: ChatMessage | None) -> str | None:
        prefix = self._prefixes[role]
        if message is None:
            text = self._renderer.try_render(prefix, add_generation_prompt=True)
        else:
            text = self._renderer.try_render([*prefix, message])
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
        """Split the text that follows the content of a conversation's last message into (closing,
        unsettled): the part that is the same for every next message, and the part that is not."""
        prefix = self._prefixes[role]
        tail = _text_after_probe(self._renderer.render(prefix), role)
        following = [
            self._renderer.try_render([*prefix, message]) for message in _FOLLOWING_MESSAGES
        ]
        following.append(self._renderer.try_render(prefix, add_generation_prompt=True))
        closing = _common_prefix(
            [tail, *(_text_after_probe(text, role) for text in following if text is not None)]
        )
        closing = closing[: self._find_token_start(tail, len(closing))]
        return closing, tail[len(closing) :]

    def _find_token_start(self, text: str, at: int) -> int:
        """Return where the added token that contains the offset `at` begins; `at` if it is in
        none."""
        start = 0
        for piece, id in self._tokenizer.split_added_tokens(text):
            if id is not None and start < at < start + len(piece):
                return start
            start += len(piece)
        return at

    def _find_opening(self) -> str:
        """Find the text that opens every user message, the first and later ones. Returns "" if the
        first and later ones have no text in common, or if the ids of that text depend on the text
        before it."""
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
    """Return the text after the first occurrence of the probe's content for `role`. A later
    occurrence is not the probe's own: an adversarial message may contain the same text."""
    return text.partition(PROBE_CONTENTS[role])[2]


def _common_prefix(texts: Sequence[str]) -> str:
    """Return the longest common prefix of `texts`."""
    first, last = min(texts), max(texts)
    same = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]

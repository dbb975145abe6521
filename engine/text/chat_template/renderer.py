"""Render messages to text with the chat template's program.

Untrusted text cannot become a control token: stretches of it that look like one are marked in the
output, and `Tokenizer.encode_marked` encodes them as plain text.
"""

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from continuo.engine.text.chat_template.jinja_program import JinjaProgram, TemplateRefused
from continuo.engine.text.chat_template.message import ChatMessage, ToolCall, ToolDefinition
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

_RENDERINGS_CACHED = 16
"""Size of the cache of rendered texts: tokenizing one message renders the same few conversations
repeatedly."""
_CALL_ID_CHARS = 9
"""Length of call ids for templates that require a fixed length, such as Mistral's."""


class _ToolsKey:
    """The tools of one conversation as a cache key. Two keys are equal if their tools are the same
    objects."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self.tools = tuple(tools)

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.tools)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ToolsKey) and (
            len(self.tools) == len(other.tools) and all(map(operator.is_, self.tools, other.tools))
        )


class TemplateRenderer:
    def __init__(
        self, program: JinjaProgram, tokenizer: Tokenizer, options: Mapping[str, Any]
    ) -> None:
        self._program = program
        self._options = options
        self._needs_folded_system = False
        self._render_cached = lru_cache(_RENDERINGS_CACHED)(self._render)
        self.mark_lookalikes = tokenizer.mark_lookalikes
        self._needs_short_ids = False
        system, user = (
            ChatMessage(role="system", content="a"),
            ChatMessage(role="user", content="b"),
        )
        self._needs_folded_system = self.try_render([system, user]) is None
        """Whether the template has no system role, so that system text is put into the first user
        message."""
        call = ToolCall(name="c", arguments="{}", id="call_of_any_length")
        self._needs_short_ids = (
            self.try_render([user, ChatMessage(role="assistant", tool_calls=(call,))]) is None
        )
        """Whether the template enforces a length of call ids, so that an id of another length is
        rendered as a digest of the right length."""
        self._render_cached.cache_clear()

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Render a conversation. Raises TemplateRefused if the template refuses it."""
        return self._render_cached(tuple(messages), _ToolsKey(tools), prompt=add_generation_prompt)

    def _render(self, messages: tuple[ChatMessage, ...], tools: _ToolsKey, *, prompt: bool) -> str:
        return self._program.render(
            [self._to_template_message(message) for message in self._fold_system(messages)],
            [cast(ToolDefinition, self._mark_strings(tool)) for tool in tools.tools],
            add_generation_prompt=prompt,
            options=self._options,
        )

    def try_render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        add_generation_prompt: bool = False,
    ) -> str | None:
        """Render a conversation. Returns None if the template refuses it."""
        try:
            return self.render(messages, tools, add_generation_prompt=add_generation_prompt)
        except TemplateRefused:
            return None

    def _fold_system(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        if not (self._needs_folded_system and messages and messages[0].role == "system"):
            return messages
        system, *rest = messages
        for at, message in enumerate(rest):
            if message.role == "user":
                content = f"{system.content}\n\n{message.content}"
                rest[at] = ChatMessage(role="user", content=content)
                break
        return rest

    def _to_template_message(self, message: ChatMessage) -> dict[str, Any]:
        """Convert a message to the dictionary that templates expect."""
        plain: dict[str, Any] = {
            "role": message.role,
            "content": self.mark_lookalikes(message.content),
        }
        if message.tool_calls:
            plain["tool_calls"] = [self._to_template_call(call) for call in message.tool_calls]
        if message.role == "tool" and message.tool_call_id:
            plain["tool_call_id"] = self.mark_lookalikes(
                self._to_template_call_id(message.tool_call_id)
            )
        return plain

    def _to_template_call(self, call: ToolCall) -> dict[str, Any]:
        function = {
            "name": self.mark_lookalikes(call.name),
            "arguments": self._mark_strings(_parse_arguments(call)),
        }
        return {
            "type": "function",
            "id": self.mark_lookalikes(self._to_template_call_id(call.id)),
            "function": function,
        }

    def _to_template_call_id(self, id: str) -> str:
        if not self._needs_short_ids or len(id) == _CALL_ID_CHARS:
            return id
        return hashlib.sha256(id.encode()).hexdigest()[:_CALL_ID_CHARS]

    def _mark_strings(self, value: object) -> object:
        if isinstance(value, str):
            return self.mark_lookalikes(value)
        if isinstance(value, Mapping):
            pairs = cast(Mapping[str, object], value).items()
            return {self.mark_lookalikes(str(key)): self._mark_strings(item) for key, item in pairs}
        if isinstance(value, (list, tuple)):
            return [self._mark_strings(item) for item in cast(Sequence[object], value)]
        return value


def _parse_arguments(call: ToolCall) -> object:
    """Decode a call's arguments, as templates expect; anything but a JSON object stays text."""
    try:
        value: object = json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
    return cast(object, value) if isinstance(value, dict) else call.arguments

"""Messages to text by the template's program. What people write cannot become a control token: it
comes out marked where it looks like one (`Tokenizer.encode_marked` spells that out)."""

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from continuo.engine.text.chat_template.jinja_program import Program, Refused
from continuo.engine.text.chat_template.message import Message, Tool, ToolCall
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

_KEPT = 16
"""Texts that are remembered: one message is laid out by asking for the same few again and again."""
_ID_CHARS = 9
"""Of a call's id, where the template counts them: Mistral's do."""


class _Tools:
    """Those of one conversation; the same ones are the same objects."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.tools)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tools) and (
            len(self.tools) == len(other.tools) and all(map(operator.is_, self.tools, other.tools))
        )


class Writer:
    def __init__(self, program: Program, tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
        self._program = program
        self._options = options
        self._folds_system = False
        self._written = lru_cache(_KEPT)(self._write)
        self.mark = tokenizer.mark
        self._short_ids = False
        system, user = Message(role="system", content="a"), Message(role="user", content="b")
        self._folds_system = self.attempt([system, user]) is None
        """The template knows no system role: its text goes into the first user message."""
        call = ToolCall(name="c", arguments="{}", id="call_of_any_length")
        self._short_ids = (
            self.attempt([user, Message(role="assistant", tool_calls=(call,))]) is None
        )
        """The template counts the characters of a call's id: it is shown shorter ones than ours."""
        self._written.cache_clear()

    def write(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """Raises Refused."""
        return self._written(tuple(messages), _Tools(tools), add_generation_prompt)

    def _write(self, messages: tuple[Message, ...], tools: _Tools, prompt: bool) -> str:
        return self._program.render(
            [self._plain(message) for message in self._folded(messages)],
            [cast(Tool, self._marked(tool)) for tool in tools.tools],
            add_generation_prompt=prompt,
            options=self._options,
        )

    def attempt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> str | None:
        """None: refused."""
        try:
            return self.write(messages, tools, add_generation_prompt)
        except Refused:
            return None

    def _folded(self, messages: Sequence[Message]) -> Sequence[Message]:
        if not (self._folds_system and messages and messages[0].role == "system"):
            return messages
        system, *rest = messages
        for at, message in enumerate(rest):
            if message.role == "user":
                content = f"{system.content}\n\n{message.content}"
                rest[at] = Message(role="user", content=content)
                break
        return rest

    def _plain(self, message: Message) -> dict[str, Any]:
        """The message as templates expect it."""
        plain: dict[str, Any] = {"role": message.role, "content": self.mark(message.content)}
        if message.tool_calls:
            plain["tool_calls"] = [self._plain_call(call) for call in message.tool_calls]
        if message.role == "tool" and message.tool_call_id:
            plain["tool_call_id"] = self.mark(self._id(message.tool_call_id))
        return plain

    def _plain_call(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": self.mark(call.name), "arguments": self._marked(_arguments(call))}
        return {"type": "function", "id": self.mark(self._id(call.id)), "function": function}

    def _id(self, id: str) -> str:
        if not self._short_ids or len(id) == _ID_CHARS:
            return id
        return hashlib.sha256(id.encode()).hexdigest()[:_ID_CHARS]

    def _marked(self, value: object) -> object:
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            pairs = cast(Mapping[str, object], value).items()
            return {self.mark(str(key)): self._marked(item) for key, item in pairs}
        if isinstance(value, (list, tuple)):
            return [self._marked(item) for item in cast(Sequence[object], value)]
        return value


def _arguments(call: ToolCall) -> object:
    """Templates expect an object; what is none stays text."""
    try:
        value: object = json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
    return cast(object, value) if isinstance(value, dict) else call.arguments

"""A conversation as ids, made from its new messages alone.

    head                message(None, m)    message("user", m)          answer("user")   sampled ...
    ├─ BOS, system, ────┼─ opening content ─┼─ rest? opening content ───┼─ rest? header ─┼─────────
       tools               closing             closing

A chat template is a program, so nothing about it is assumed. When it is loaded it renders short
conversations with contents we can find again (_WORDS). What stands behind the last content shows
how a message closes; the part that is the same whatever follows is written with the message, the
rest ("rest?": Qwen holds several tool results in one block) with what follows. Later each message
is rendered behind such a short conversation, and only what is new in the text becomes ids.

Some templates change what they wrote before (Qwen3 drops old reasoning, Mistral moves the tools to
the last user message). `extend` says from which message on, and gives the ids from there.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from engine.errors import BadRequest
from engine.text.jinja import Program, Refused
from engine.text.message import Message, Role, Tool, ToolCall
from engine.text.tokenizer import Tokenizer

_WORDS: dict[Role, str] = {
    "system": "zq9system9qz",
    "user": "zq9user9qz",
    "assistant": "zq9assistant9qz",
    "tool": "zq9tool9qz",
}
"""Contents that no template writes itself, that need no trimming and survive JSON."""

_SYSTEM = Message(role="system", content=_WORDS["system"])
_USER = Message(role="user", content=_WORDS["user"])
_ASSISTANT = Message(role="assistant", content=_WORDS["assistant"])
_CALL = Message(
    role="assistant", tool_calls=(ToolCall(name="look", arguments="{}", id="call00000"),)
)
_TOOL = Message(role="tool", content=_WORDS["tool"], tool_call_id="call00000")

_SHORT: dict[Role, tuple[tuple[Message, ...], ...]] = {
    "system": ((_SYSTEM,), (_USER, _ASSISTANT, _SYSTEM)),
    "user": ((_USER,), (_SYSTEM, _USER)),
    "assistant": ((_USER, _ASSISTANT), (_SYSTEM, _USER, _ASSISTANT)),
    "tool": ((_USER, _CALL, _TOOL), (_USER, _ASSISTANT, _TOOL)),
}
"""Conversations that end in a message of the role, likeliest first."""

_NEXT: tuple[Message, ...] = (
    Message(role="user", content="next"),
    Message(role="assistant", content="next"),
    _CALL,
    Message(role="tool", content="next", tool_call_id="call00000"),
    Message(role="system", content="next"),
)


class Extension(msgspec.Struct, frozen=True):
    """What a conversation becomes when messages are added."""

    keep: int
    """Messages of the history whose ids stay. Less than all: rewind to the end of these."""
    ids: list[int]
    """What follows them."""


class ChatTemplate:
    """Append-stable rendering: a conversation is the concatenation of segments, each made from new
    messages alone. Control tokens come from the template only, never from what people write."""

    def __init__(
        self, source: str, tokenizer: Tokenizer, stop_ids: Sequence[int], **options: Any
    ) -> None:
        """`options` are passed to the template (enable_thinking, ...). Raises ModelError."""
        self._program = Program(source, tokenizer.special_names)
        self._tokenizer = tokenizer
        self._options = options
        literals = self._program.literals
        tokenizer.set_control([text for text in tokenizer.added.values() if text in literals])
        self.stop_ids: tuple[int, ...] = tuple(stop_ids)
        self._short: dict[Role, tuple[Message, ...]] = {
            role: found for role in _SHORT if (found := self._find_short(role))
        }
        self._held = {role: self._find_held(role) for role in self._short}
        self._opening = self._find_opening()

    # --- segments ---

    def head(self, system: str | None, tools: Sequence[Tool] = ()) -> list[int]:
        """What stands before the first message (BOS, system message, tools)."""
        return self._tokenizer.encode_marked(self._head(system, tools))

    def message(
        self,
        previous: Role | None,
        message: Message,
        *,
        system: str | None = None,
        tools: Sequence[Tool] = (),
    ) -> list[int]:
        """A whole message as it stands after one of role `previous` (None: right after the head;
        then `system` and `tools` are what the head was given: some templates write them into the
        first message). Raises BadRequest if the template has no place for such a message."""
        if previous is None:
            text = self._first(message, system, tools)
        else:
            text = self._after(previous, message)
        return self._tokenizer.encode_marked(self._cut(text, message.role), inside=True)

    def answer(self, previous: Role | None) -> list[int]:
        """The header that opens the assistant's turn."""
        return self._tokenizer.encode(self._after(previous or "user", None), inside=True)

    def ending(self, sampled: Sequence[int]) -> list[int]:
        """What is still missing after these sampled ids to close the assistant's message, before
        the next segment."""
        closing = self._tokenizer.encode(
            self._cut(self._tail("assistant"), "assistant"), inside=True
        )
        for length in range(min(len(closing), len(sampled)), 0, -1):
            if list(sampled[-length:]) == closing[:length]:
                return closing[length:]
        if not sampled or sampled[-1] not in self.stop_ids:
            return closing
        # Another stop id (end of text, end of a tool call) has taken the terminator's place.
        stops = [at for at, id in enumerate(closing) if id in self.stop_ids]
        return closing[stops[0] + 1 :] if stops else closing

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """The whole conversation at once: slow and obvious, what the segments must add up to."""
        text = self._render(messages, tools, add_generation_prompt)
        return self._tokenizer.encode_marked(text)

    # --- seams ---

    def _find_short(self, role: Role) -> tuple[Message, ...] | None:
        for messages in _SHORT[role]:
            text = self._try(messages)
            if text is not None and _WORDS[role] in text:
                return messages
        return None

    def _find_held(self, role: Role) -> int:
        """How many characters of a message's end are not certain until it is known what follows."""
        short = self._short[role]
        tails = [self._tail(role)]
        for following in _NEXT:
            if following.role in self._short and (text := self._try([*short, following])):
                tails.append(_behind(text, _WORDS[role]))
        tails.append(_behind(self._render(short, add_generation_prompt=True), _WORDS[role]))
        return len(tails[0]) - len(_common(tails))

    def _find_opening(self) -> str:
        """How a user message opens, as far as it is the same first and later, whatever the head."""
        before = [
            _before(text, _WORDS["user"])
            for messages in ((_USER,), (_SYSTEM, _USER))
            if (text := self._try(messages))
        ]
        alone = self._try([_SYSTEM])
        if alone and len(before) == 2 and before[1].startswith(alone):
            before.append(before[1][len(alone) :])
        elif text := self._try([_USER, _ASSISTANT, _USER]):
            before.append(_behind(_before(text, _WORDS["user"]), _WORDS["assistant"]))
        return _common([text[::-1] for text in before])[::-1]

    def _tail(self, role: Role) -> str:
        """All that stands behind the content of a last message."""
        short = self._short.get(role)
        return _behind(self._render(short), _WORDS[role]) if short else ""

    def _cut(self, text: str, role: Role) -> str:
        """`text`, which ends in a last message, without what is held back."""
        held = self._held.get(role, 0)
        return text[:-held] if held and text.endswith(self._tail(role)[-held:]) else text

    def _head(self, system: str | None, tools: Sequence[Tool]) -> str:
        messages = [Message(role="system", content=system)] if system is not None else []
        text = self._try([*messages, _USER], tools) or self._render([_USER], tools)
        return _before(text, _WORDS["user"]).removesuffix(self._opening)

    def _first(self, message: Message, system: str | None, tools: Sequence[Tool]) -> str:
        head = self._head(system, tools)
        messages = [Message(role="system", content=system)] if system is not None else []
        text = self._try([*messages, message], tools)
        if text is not None and text.startswith(head):
            return text[len(head) :]
        return self._after("user" if message.role == "assistant" else "assistant", message)

    def _after(self, previous: Role, message: Message | None) -> str:
        """What `message` (None: the assistant's header) adds behind a message of role `previous`,
        together with what that one held back."""
        for role in (previous, *self._short):
            short = self._short.get(role)
            if short is None:
                continue
            text = (
                self._try([*short, message])
                if message
                else self._try(short, add_generation_prompt=True)
            )
            closing = self._cut(self._tail(short[-1].role), short[-1].role)
            if text is not None and (rest := _behind(text, short[-1].content)).startswith(closing):
                return rest[len(closing) :]
        raise BadRequest("the model's chat template has no place for this message", field="role")

    # --- rendering ---

    def _try(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> str | None:
        try:
            return self._render(messages, tools, add_generation_prompt)
        except Refused:
            return None

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        return self._program.render(
            [self._plain(message) for message in messages],
            [cast(Tool, self._marked(tool)) for tool in tools],
            add_generation_prompt=add_generation_prompt,
            options=self._options,
        )

    def _plain(self, message: Message) -> dict[str, Any]:
        """The message as templates expect it, what looks like control tokens marked."""
        plain: dict[str, Any] = {"role": message.role, "content": self._marked(message.content)}
        if message.tool_calls:
            plain["tool_calls"] = [self._plain_call(call) for call in message.tool_calls]
        if message.role == "tool" and message.tool_call_id:
            plain["tool_call_id"] = self._marked(message.tool_call_id)
        return plain

    def _plain_call(self, call: ToolCall) -> dict[str, Any]:
        function = {"name": self._marked(call.name), "arguments": self._marked(_arguments(call))}
        return {"type": "function", "id": self._marked(call.id), "function": function}

    def _marked(self, value: object) -> object:
        if isinstance(value, str):
            return self._tokenizer.mark(value)
        if isinstance(value, Mapping):
            pairs = cast(Mapping[str, object], value).items()
            return {self._tokenizer.mark(str(key)): self._marked(item) for key, item in pairs}
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


def _common(texts: Sequence[str]) -> str:
    """The longest beginning that all `texts` share."""
    first, last = min(texts, default=""), max(texts, default="")
    same = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(same, min(len(first), len(last)))]


def _behind(text: str, word: str) -> str:
    """What stands behind `word`, at its first place: a later one is somebody's joke."""
    return text.partition(word)[2]


def _before(text: str, word: str) -> str:
    return text.rpartition(word)[0]

"""Text of one model: its tokenizer, its chat template, its detokenizer. Knows no torch."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON text."""
    id: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Of a `tool` message: the call it answers."""


class Detokenizer:
    """Ids to text, a few at a time: never half a character, never a late correction."""

    def push(self, ids: Sequence[int]) -> str: ...
    def flush(self) -> str: ...


class ChatTemplate:
    """Append-stable rendering: a conversation is the concatenation of segments, each made from new
    messages alone."""

    stop_ids: tuple[int, ...]

    def head(self, system: str | None, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """What stands before the first message (BOS, system message, tools)."""
        ...

    def message(self, previous: Role | None, message: Message) -> list[int]:
        """A whole message as it stands after one of role `previous` (None: right after the head)."""
        ...

    def answer(self, previous: Role | None) -> list[int]:
        """The header that opens the assistant's turn."""
        ...

    def ending(self, sampled: Sequence[int]) -> list[int]:
        """What is still missing after these sampled ids to close the assistant's message, before
        the next segment."""
        ...


class Text:
    """Loaded from a checkpoint folder (tokenizer.json, tokenizer_config.json, chat template)."""

    template: ChatTemplate | None

    def __init__(self, folder: str) -> None: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def detokenizer(self) -> Detokenizer: ...

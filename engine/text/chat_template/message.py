"""Messages of a conversation as the chat template sees them: text, not tokens."""

from typing import Any, Literal

import msgspec

ChatRole = Literal["system", "user", "assistant", "tool"]
ToolDefinition = dict[str, Any]
"""An OpenAI-style tool: {"type": "function", "function": {name, description, parameters}}."""


class ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """The arguments as JSON text."""
    id: str = ""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: ChatRole
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    """Reasoning of the assistant before this message."""
    tool_call_id: str = ""
    """Id of the call whose result this message carries, if its role is `tool`."""

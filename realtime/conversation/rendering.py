"""Rendering of items and tools as the messages and tool schemas that a chat template takes.
Pure."""

from collections.abc import Sequence
from typing import Any, Literal, assert_never

import msgspec

from continuo.engine import ChatMessage, ToolCall
from continuo.realtime.protocol.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.settings import GenerationSettings, Tool

MessageRole = Literal["system", "user", "assistant", "tool"]


def role_of(item: Item) -> MessageRole:
    match item:
        case MessageItem(role=role):
            return role
        case FunctionCallItem() | ReasoningItem():
            return "assistant"
        case FunctionCallOutputItem():
            return "tool"
        case _:
            assert_never(item)


def text_of(item: MessageItem) -> str:
    return "\n".join(part.text for part in item.parts)


def count_chars(item: Item) -> int:
    match item:
        case MessageItem():
            return sum(len(part.text) for part in item.parts)
        case FunctionCallItem(name=name, arguments=arguments):
            return len(name) + len(arguments)
        case FunctionCallOutputItem(output=output):
            return len(output)
        case ReasoningItem(text=text):
            return len(text)
        case _:
            assert_never(item)


def count_head_chars(settings: GenerationSettings) -> int:
    """Count the characters of the head: instructions and tools."""
    return len(settings.instructions) + sum(
        len(tool.name) + len(tool.parameters) + len(tool.description or "")
        for tool in settings.tools
    )


UNSTABLE_WORD_CHARS_MAX = 16
"""Maximum number of characters at the end of a draft that are withheld from the engine, because
their tokens may change while the last word is unfinished. Of a longer word (hardly any is real),
only so many last characters are withheld."""


def stable_prefix(draft: str) -> str:
    """Return the part of a draft that keeps its tokens when text is appended. The last word is left
    out unless a space follows it. Trailing space is left out too, because it belongs to the next
    word."""
    if draft != draft.rstrip():
        return draft.rstrip()
    word = draft.split()[-1] if draft else ""
    if len(word) > UNSTABLE_WORD_CHARS_MAX:
        return draft[:-UNSTABLE_WORD_CHARS_MAX]
    return draft.removesuffix(word).rstrip()


def is_merged_into(before: Sequence[Item], item: Item) -> bool:
    """Whether `item` is rendered into the same assistant message as the items `before` it: a
    function call, or what follows reasoning."""
    if isinstance(before[-1], ReasoningItem):
        return role_of(item) == "assistant"
    return isinstance(item, FunctionCallItem) and role_of(before[-1]) == "assistant"


def render_message(items: Sequence[Item]) -> ChatMessage:
    """Render `items` as one message: a single item, or an assistant message with its reasoning and
    its function calls."""
    match items[0]:
        case FunctionCallOutputItem(call_id=call_id, output=output):
            return ChatMessage(role="tool", content=output, tool_call_id=call_id)
        case MessageItem(role=role) as item if role != "assistant":
            return ChatMessage(role=role, content=text_of(item))
        case _:
            texts = [text_of(item) for item in items if isinstance(item, MessageItem)]
            calls = [item for item in items if isinstance(item, FunctionCallItem)]
            reasoning = [item.text for item in items if isinstance(item, ReasoningItem)]
            return ChatMessage(
                role="assistant",
                content="".join(texts),
                reasoning="\n\n".join(reasoning),
                tool_calls=tuple(
                    ToolCall(name=call.name, arguments=call.arguments, id=call.call_id)
                    for call in calls
                ),
            )


def render_tool(tool: Tool) -> dict[str, Any]:
    """Render a tool as in OpenAI's chat completions, the schema that chat templates expect."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = msgspec.json.decode(tool.parameters)
    return {"type": "function", "function": function}

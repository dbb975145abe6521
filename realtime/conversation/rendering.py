"""Items to what a chat template understands. Pure."""

from collections.abc import Sequence
from typing import Any, Literal, assert_never

import msgspec

from continuo.engine import Message, ToolCall
from continuo.realtime.protocol.items import CallItem, CallOutputItem, Item, MessageItem
from continuo.realtime.protocol.settings import Settings, Tool

Role = Literal["system", "user", "assistant", "tool"]


def role_of(item: Item) -> Role:
    match item:
        case MessageItem(role=role):
            return role
        case CallItem():
            return "assistant"
        case CallOutputItem():
            return "tool"
        case _:
            assert_never(item)


def text_of(item: MessageItem) -> str:
    return "\n".join(part.text for part in item.parts)


def chars_of(item: Item) -> int:
    match item:
        case MessageItem():
            return sum(len(part.text) for part in item.parts)
        case CallItem(name=name, arguments=arguments):
            return len(name) + len(arguments)
        case CallOutputItem(output=output):
            return len(output)
        case _:
            assert_never(item)


def chars_of_head(settings: Settings) -> int:
    """Of what stands before all items."""
    return len(settings.instructions) + sum(
        len(tool.name) + len(tool.parameters) + len(tool.description or "")
        for tool in settings.tools
    )


HELD_CHARS_MAX = 16
"""Of a word that may go on, how much is kept from the model; longer ones are no words."""


def stable(draft: str) -> str:
    """The words that are certain to stay as they are when more is said: without the last one,
    unless a space has ended it, and without that space, which belongs to the next."""
    if draft != draft.rstrip():
        return draft.rstrip()
    word = draft.split()[-1] if draft else ""
    if len(word) > HELD_CHARS_MAX:
        return draft[:-HELD_CHARS_MAX]
    return draft.removesuffix(word).rstrip()


def joins(before: Sequence[Item], item: Item) -> bool:
    """Whether a call belongs into the assistant's message that ends with `before`."""
    return isinstance(item, CallItem) and role_of(before[-1]) == "assistant"


def message_of(items: Sequence[Item]) -> Message:
    """One item, or an assistant's message with the calls that belong to it."""
    match items[0]:
        case CallOutputItem(call_id=call_id, output=output):
            return Message(role="tool", content=output, tool_call_id=call_id)
        case MessageItem(role=role) as item if role != "assistant":
            return Message(role=role, content=text_of(item))
        case _:
            said = [text_of(item) for item in items if isinstance(item, MessageItem)]
            calls = [item for item in items if isinstance(item, CallItem)]
            return Message(
                role="assistant",
                content="".join(said),
                tool_calls=tuple(
                    ToolCall(name=call.name, arguments=call.arguments, id=call.call_id)
                    for call in calls
                ),
            )


def tool_of(tool: Tool) -> dict[str, Any]:
    """As chat templates have it since OpenAI's chat completions."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = msgspec.json.decode(tool.parameters)
    return {"type": "function", "function": function}

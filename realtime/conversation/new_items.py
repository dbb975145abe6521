"""Items that are appended to a conversation: those that it has already are left out. Pure."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import role_of
from continuo.realtime.conversation.text_limits import TextLimits
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.settings import Truncation


def drop_known_items(conversation: Conversation, items: Iterable[Item]) -> tuple[Item, ...]:
    """Return `items` without those that the conversation has already: clients send them again
    beside the id of a response.

    An item is known by its id, with the same role and text; reasoning by its id alone, because
    clients send it in part or not at all. Items at the start are known without their ids if they
    are the whole output at the end of the conversation: some clients send no ids.
    """
    items = tuple(items)
    output = _last_output(conversation)
    start = len(output) if tuple(map(_content_of, items[: len(output)])) == output else 0
    ids = {item.id for item in items}
    known = {
        item.id: _content_of(item) for item in conversation.items_with_reasoning() if item.id in ids
    }
    return tuple(item for item in items[start:] if known.get(item.id) != _content_of(item))


def _last_output(conversation: Conversation) -> tuple[tuple[str, ...], ...]:
    """Return the contents of the messages and calls of the model that end the conversation."""
    newest_first = reversed([*conversation.items()])
    output = takewhile(lambda item: role_of(item) == "assistant", newest_first)
    return tuple(map(_content_of, output))[::-1]


def _content_of(item: Item) -> tuple[str, ...]:
    """Return what the model reads of an item: not its id, its status, or how its text is divided
    into parts."""
    match item:
        case MessageItem():
            return ("message", item.role, "".join(part.text for part in item.parts))
        case FunctionCallItem():
            return ("function_call", item.call_id, item.name, item.arguments)
        case FunctionCallOutputItem():
            return ("function_call_output", item.call_id, item.output)
        case ReasoningItem():
            return ("reasoning",)


def append_items(
    conversation: Conversation,
    items: Sequence[Item],
    text_limits: TextLimits,
    truncation: Truncation,
) -> Conversation:
    """Append items. With truncation, those that cannot be in the context are not tokenized: they,
    and all before them, move out of window. Raises TooLong far above the context."""
    if truncation.mode == "disabled" or conversation.has_open_response:
        return conversation.with_items(items, text_limits.request_tokens_max)
    hidden = len(items) - text_limits.count_visible_items(items)
    if hidden:
        conversation = conversation.with_items_out_of_window(items[:hidden])
    return conversation.with_items(items[hidden:])


def check_new_items(conversation: Conversation, items: Iterable[Item], param: str) -> None:
    """Raise Refusal, which names the field `param`, if an item of the conversation has the id of
    one of `items`, or if two of them have the same id."""
    known = {item.id for item in conversation.items_with_reasoning()}
    for item in items:
        if item.id in known:
            raise Refusal(
                f"An item with the id '{item.id}' is in the conversation already. Leave it out: "
                f"the items of the conversation come before '{param}'.",
                code="item_create_duplicate_item_id",
                param=param,
            )
        known.add(item.id)

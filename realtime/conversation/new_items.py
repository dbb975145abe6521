"""Check of items that are appended to a stored conversation. Pure."""

from collections.abc import Iterable

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.items import Item


def check_new_items(conversation: Conversation, items: Iterable[Item]) -> None:
    """Raise Refusal if an item of the conversation has the id of one of `items`, or if two of them
    have the same id."""
    known = {item.id for item in conversation.items_with_reasoning()}
    for item in items:
        if item.id in known:
            raise Refusal(
                f"An item with the id '{item.id}' is in the conversation already. Leave it out: "
                "the items of the conversation come before the input.",
                code="item_create_duplicate_item_id",
                param="input",
            )
        known.add(item.id)

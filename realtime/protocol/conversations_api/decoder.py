"""Decoding of new items. Pure; raises Refusal for items that are invalid."""

from collections.abc import Callable, Sequence

from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.responses_api.client_events import ItemIn
from continuo.realtime.protocol.responses_api.decoder import decode_items
from continuo.realtime.protocol.validation import unsupported_value


def decode_new_items(items: Sequence[ItemIn], new_id: Callable[[str], str]) -> tuple[Item, ...]:
    """Decode items that are added to a conversation. Reasoning items are skipped."""
    decoded: list[Item] = []
    for item in decode_items(list(items), "items", new_id):
        if isinstance(item, ItemReference):
            raise unsupported_value("items", "a reference adds no item")
        decoded.append(item)
    return tuple(decoded)

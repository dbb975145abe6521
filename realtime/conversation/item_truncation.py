"""What is left of an answer when only its beginning was heard: whole tokens, then a remainder."""

from collections.abc import Sequence

import msgspec

from continuo.engine import Text
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import TruncateItem
from continuo.realtime.protocol.items import Item, MessageItem


def heard(text: Text, sampled: Sequence[int], end: int) -> tuple[list[int], int]:
    """The first of the sampled ids, as many as say at most `end` characters (code points) and no
    half one; and how many characters these are."""
    stream, length, borders = text.detokenizer(), 0, [(0, 0)]
    said: list[str] = []
    for at, id in enumerate(sampled, 1):
        more = stream.push([id])
        length += len(more)
        if length > end:
            break
        if more:
            said.append(more)
            borders.append((at, length))
    words = "".join(said)
    for at, length in reversed(borders):
        fresh = text.detokenizer()
        if fresh.push(sampled[:at]) + fresh.flush() == words[:length]:
            return list(sampled[:at]), length
    raise AssertionError("nothing says nothing")


def spoken(item: Item) -> MessageItem:
    """Raises Refusal if the assistant has not said it."""
    if not isinstance(item, MessageItem) or item.role != "assistant":
        raise Refusal(
            "Only the assistant's messages can be truncated.",
            code="item_truncate_invalid_item_id",
            param="item_id",
        )
    return item


def shortened(item: MessageItem, ask: TruncateItem, end: int) -> MessageItem:
    """The item up to `end` characters of its part. Raises Refusal."""
    if ask.content_index >= len(item.parts):
        raise Refusal(
            f"The item has {len(item.parts)} content parts; there is none at {ask.content_index}.",
            code="invalid_value",
            param="content_index",
        )
    part = item.parts[ask.content_index]
    if end > len(part.text):
        raise Refusal(
            f"The text of the item is {len(part.text):,} characters long; it cannot be truncated "
            f"at {end:,}.",
            code="invalid_value",
            param="text_end",
        )
    part = msgspec.structs.replace(part, text=part.text[:end])
    parts = (*item.parts[: ask.content_index], part)
    if parts == item.parts:
        return item
    return msgspec.structs.replace(item, parts=parts, status="incomplete")

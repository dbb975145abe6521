"""What is left of an answer when only its beginning was heard: whole tokens, then a remainder."""

from collections.abc import Sequence

import msgspec

from continuo.engine import ModelText
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import TruncateItem
from continuo.realtime.protocol.items import Item, MessageItem


def find_sampled_prefix(
    text: ModelText, sampled_ids: Sequence[int], chars_max: int
) -> tuple[list[int], int]:
    """The first of the sampled ids, as many as say at most `end` characters (code points) and no
    half one; and how many characters these are."""
    stream, length, borders = text.create_detokenizer(), 0, [(0, 0)]
    said: list[str] = []
    for at, id in enumerate(sampled_ids, 1):
        more = stream.push([id])
        length += len(more)
        if length > chars_max:
            break
        if more:
            said.append(more)
            borders.append((at, length))
    words = "".join(said)
    for at, length in reversed(borders):
        fresh = text.create_detokenizer()
        if fresh.push(sampled_ids[:at]) + fresh.flush() == words[:length]:
            return list(sampled_ids[:at]), length
    raise AssertionError("nothing says nothing")


def require_assistant_message(item: Item) -> MessageItem:
    """Raises Refusal if the assistant has not said it."""
    if not isinstance(item, MessageItem) or item.role != "assistant":
        raise Refusal(
            "Only the assistant's messages can be truncated.",
            code="item_truncate_invalid_item_id",
            param="item_id",
        )
    return item


def truncate_message(item: MessageItem, command: TruncateItem, text_end: int) -> MessageItem:
    """The item up to `end` characters of its part. Raises Refusal."""
    if command.content_index >= len(item.parts):
        raise Refusal(
            f"The item has {len(item.parts)} content parts; there is none at "
            f"{command.content_index}.",
            code="invalid_value",
            param="content_index",
        )
    part = item.parts[command.content_index]
    if text_end > len(part.text):
        raise Refusal(
            f"The text of the item is {len(part.text):,} characters long; it cannot be truncated "
            f"at {text_end:,}.",
            code="invalid_value",
            param="text_end",
        )
    part = msgspec.structs.replace(part, text=part.text[:text_end])
    parts = (*item.parts[: command.content_index], part)
    if parts == item.parts:
        return item
    return msgspec.structs.replace(item, parts=parts, status="incomplete")

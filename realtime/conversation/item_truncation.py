"""Truncation of a message to the text that the user received: whole sampled tokens, then the
remaining characters encoded again."""

from collections.abc import Sequence

import msgspec

from continuo.engine import ModelText
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import TruncateItem
from continuo.realtime.protocol.items import Item, MessageItem


def find_sampled_prefix(
    text: ModelText, sampled_ids: Sequence[int], chars_max: int
) -> tuple[list[int], int]:
    """Find the longest prefix of the sampled ids that decodes to at most `chars_max` characters
    (code points) and ends with a complete character. Returns the ids and the number of
    characters."""
    detokenizer, length, boundaries = text.create_detokenizer(), 0, [(0, 0)]
    pieces: list[str] = []
    for at, id in enumerate(sampled_ids, 1):
        piece = detokenizer.push([id])
        length += len(piece)
        if length > chars_max:
            break
        if piece:
            pieces.append(piece)
            boundaries.append((at, length))
    decoded = "".join(pieces)
    for at, length in reversed(boundaries):
        fresh = text.create_detokenizer()
        if fresh.push(sampled_ids[:at]) + fresh.flush() == decoded[:length]:
            return list(sampled_ids[:at]), length
    raise AssertionError("no ids decode to no text")


def require_assistant_message(item: Item) -> MessageItem:
    """Return the item if it is a message of the assistant. Raises Refusal."""
    if not isinstance(item, MessageItem) or item.role != "assistant":
        raise Refusal(
            "Only the assistant's messages can be truncated.",
            code="item_truncate_invalid_item_id",
            param="item_id",
        )
    return item


def require_audio(item: MessageItem, command: TruncateItem) -> None:
    """Raise Refusal if a truncation at a time of the audio concerns a part that is text."""
    parts = item.parts[command.content_index :]
    if parts and parts[0].kind != "input_audio":
        raise Refusal(
            f"Missing required parameter: 'text_end'. The item with id '{item.id}' is text and has "
            "no audio, so 'audio_end_ms' does not say where it ends: send 'text_end', the number "
            "of characters that the user has received.",
            code="missing_required_parameter",
            param="text_end",
        )


def truncate_message(item: MessageItem, command: TruncateItem, text_end: int) -> MessageItem:
    """Cut a content part of a message to its first `text_end` characters. Returns `item` itself if
    nothing is cut. Raises Refusal."""
    if command.content_index >= len(item.parts):
        raise Refusal(
            f"The item has {len(item.parts)} content parts; the index {command.content_index} is "
            "out of range.",
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

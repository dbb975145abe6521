"""The items of a conversation: messages, function calls and their outputs.

Items are stored as arrays: a new field goes last, and has a default."""

from typing import Literal

import msgspec

ItemStatus = Literal["in_progress", "completed", "incomplete"]


ItemRole = Literal["system", "user", "assistant"]


ContentPartKind = Literal["input_text", "output_text", "input_audio"]


ROOT = "root"
"""Value of `AddItem.after` that inserts the item before all others."""


class ContentPart(msgspec.Struct, frozen=True, array_like=True):
    """Text of an item. For `input_audio` it is the transcript: a text server has no audio."""

    kind: ContentPartKind
    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="message"):
    id: str
    role: ItemRole
    parts: tuple[ContentPart, ...]
    status: ItemStatus = "completed"


class FunctionCallItem(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="function_call"
):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class FunctionCallOutputItem(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="function_call_output"
):
    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="reasoning"):
    """Reasoning of the model before the next item of its response."""

    id: str
    text: str
    status: ItemStatus = "completed"


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
OutputItem = MessageItem | FunctionCallItem | ReasoningItem
"""An item that the model generates."""


class ItemReference(msgspec.Struct, frozen=True):
    item_id: str

"""The client's copy of a conversation: items in order, and the responses in progress.

Applies server events, and returns what changed beside the whole list.
"""

import copy
from collections.abc import Sequence

import msgspec

from continuo.realtime.client.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPart,
    FunctionCall,
    Item,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemTruncated,
    Message,
    OutputItemAdded,
    Response,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    SessionUpdated,
    TextDelta,
    TextDone,
)

ROOT = "root"
"""Value of `previous_item_id` that stands for the place before the first item."""


class ItemInserted(msgspec.Struct, frozen=True):
    item: Item
    index: int


class ItemUpdated(msgspec.Struct, frozen=True):
    """An item has another content or status. `item`: as it is now."""

    item: Item


class TextAppended(msgspec.Struct, frozen=True):
    item: Message
    delta: str


class ItemRemoved(msgspec.Struct, frozen=True):
    item: Item
    index: int


class ItemsReplaced(msgspec.Struct, frozen=True):
    """The server sends the whole conversation again: the list is empty, and the items follow."""


class ResponseUpdated(msgspec.Struct, frozen=True):
    """A response began or ended."""

    response: Response


ConversationChange = (
    ItemInserted | ItemUpdated | TextAppended | ItemRemoved | ItemsReplaced | ResponseUpdated
)


class Conversation:
    """Items in order. They are the client's own: read them, do not change them."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._by_id: dict[str, Item] = {}
        self._output: dict[str, list[str]] = {}
        """Item ids of each response in progress."""

    @property
    def items(self) -> Sequence[Item]:
        return self._items

    @property
    def messages(self) -> list[Message]:
        return [item for item in self._items if isinstance(item, Message)]

    @property
    def is_responding(self) -> bool:
        return bool(self._output)

    def find(self, item_id: str) -> Item | None:
        return self._by_id.get(item_id)

    def items_after(self, item_id: str | None) -> list[Item]:
        """List the items after an item; all of them after None or an unknown item."""
        return self._items[self._index(item_id) + 1 :]

    def apply(self, event: ServerEvent) -> ConversationChange | None:
        """Apply a server event. Returns None if nothing changed."""
        match event:
            case SessionUpdated(session={"resume": {"resumed": "snapshot"}}):
                self.clear()
                return ItemsReplaced()
            case ItemAdded(item=item, previous_item_id=previous):
                return self._add(item, previous)
            case ItemDone(item=item):
                return self._replace(item)
            case ItemDeleted(item_id=item_id):
                return self._delete(item_id)
            case ItemTruncated(item_id=item_id, content_index=index, text_end=int() as end):
                part = self._part(item_id, index)
                return part and self._set_text(item_id, index, (part.text or "")[:end])
            case ResponseCreated(response=response) | ResponseDone(response=response):
                return self._update_response(response)
            case OutputItemAdded(response_id=response_id, item=item):
                self._output.get(response_id, []).append(item.id)
                return None
            case _:
                return self._apply_output(event)

    def _apply_output(self, event: ServerEvent) -> ConversationChange | None:
        match event:
            case TextDelta(item_id=item_id, content_index=index, delta=delta):
                return self._append_text(item_id, index, delta)
            case TextDone(item_id=item_id, content_index=index, text=text):
                return self._set_text(item_id, index, text)
            case ArgumentsDelta(item_id=item_id, delta=delta):
                call = self._by_id.get(item_id)
                before = call.arguments if isinstance(call, FunctionCall) else ""
                return self._set_arguments(item_id, before + delta)
            case ArgumentsDone(item_id=item_id, arguments=arguments):
                return self._set_arguments(item_id, arguments)
            case _:
                return None

    def clear(self) -> None:
        self._items.clear()
        self._by_id.clear()
        self._output.clear()

    def remove_unfinished_output(self) -> None:
        """Remove the items of the responses in progress, and these responses."""
        for item_id in [id for ids in self._output.values() for id in ids]:
            self._delete(item_id)
        self._output.clear()

    def _index(self, item_id: str | None) -> int:
        """Return the index of an item; -1 if there is none."""
        ids = (index for index, item in enumerate(self._items) if item.id == item_id)
        return next(ids, -1) if item_id in self._by_id else -1

    def _add(self, item: Item, previous: str | None) -> ConversationChange | None:
        if item.id in self._by_id:
            return self._replace(item)
        index = len(self._items)
        if previous is None or previous == ROOT:
            index = 0
        elif self._items and self._items[-1].id != previous and previous in self._by_id:
            index = self._index(previous) + 1
        item = copy.deepcopy(item)
        self._items.insert(index, item)
        self._by_id[item.id] = item
        return ItemInserted(item, index)

    def _replace(self, item: Item) -> ConversationChange | None:
        index = self._index(item.id)
        if index < 0 or self._items[index] == item:
            return None
        self._items[index] = self._by_id[item.id] = copy.deepcopy(item)
        return ItemUpdated(self._items[index])

    def _delete(self, item_id: str) -> ConversationChange | None:
        index = self._index(item_id)
        if index < 0:
            return None
        del self._items[index]
        return ItemRemoved(self._by_id.pop(item_id), index)

    def _part(self, item_id: str, index: int) -> ContentPart | None:
        item = self._by_id.get(item_id)
        if not isinstance(item, Message):
            return None
        while len(item.content) <= index:
            item.content.append(ContentPart(type="output_text", text=""))
        return item.content[index]

    def _append_text(self, item_id: str, index: int, delta: str) -> ConversationChange | None:
        item, part = self._by_id.get(item_id), self._part(item_id, index)
        if part is None or not isinstance(item, Message):
            return None
        part.text = (part.text or "") + delta
        return TextAppended(item, delta)

    def _set_text(self, item_id: str, index: int, text: str) -> ConversationChange | None:
        part = self._part(item_id, index)
        if part is None or part.text == text:
            return None
        part.text = text
        return ItemUpdated(self._by_id[item_id])

    def _set_arguments(self, item_id: str, arguments: str) -> ConversationChange | None:
        item = self._by_id.get(item_id)
        if not isinstance(item, FunctionCall) or item.arguments == arguments:
            return None
        item.arguments = arguments
        return ItemUpdated(item)

    def _update_response(self, response: Response) -> ConversationChange | None:
        if response.conversation_id is None:
            return ResponseUpdated(response)
        if response.status == "in_progress":
            self._output.setdefault(response.id, [])
        else:
            self._output.pop(response.id, None)
        return ResponseUpdated(response)

"""conversation.item.create: add an item to the conversation."""

import msgspec

from continuo.realtime.conversation.rendering import count_chars
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import AddItem
from continuo.realtime.protocol.events import ItemAdded, ItemDeleted
from continuo.realtime.protocol.items import ROOT
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger
from continuo.realtime.session.unit_of_work import Edit


async def execute(context: CommandContext, command: AddItem) -> None:
    item, after, now = command.item, command.after, context.conversation
    known = now.find(item.id)
    if known is not None and known != item:
        raise Refusal(
            f"Error adding item: an item with id '{item.id}' already exists.",
            code="item_create_duplicate_item_id",
            param="item.id",
        )
    if after is not None and after != ROOT and now.find(after) is None:
        raise Refusal(
            f"Error adding item: the previous item with id '{after}' does not exist.",
            code="item_create_invalid_previous_item_id",
            param="previous_item_id",
        )
    if known is not None:
        context.emit_item(item)
        return
    chars = count_chars(item)
    context.text_limits.check(chars, "item")
    with context.charge_text(chars):
        await context.apply(
            Edit(
                param="item",
                change=lambda now: now.add_item(item, after),
                make_events=lambda now, rewind: [
                    ItemAdded(item, context.unit_of_work.previous_item_id(now, item.id), rewind)
                ],
                chars=chars,
                only_appends=after is None,
                result=item.id,
            )
        )


def replay(context: CommandContext, command: AddItem, result: str) -> bool:
    """Emit the item again. If it was deleted since, emit that it was added and deleted."""
    # Of a long id, only the first bytes were recorded.
    original_id = command.item.id if command.item.id.startswith(result) else result
    item = context.conversation.find(original_id)
    if item is not None:
        context.emit_item(item)
    else:
        context.emit_unlogged(
            ItemAdded(msgspec.structs.replace(command.item, id=original_id), None)
        )
        context.emit_unlogged(ItemDeleted(original_id))
    return True


HANDLER = CommandHandler(Trigger.EDIT, execute, replay)

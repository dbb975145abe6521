"""conversation.item.delete: remove an item from the conversation."""

from continuo.realtime.protocol.commands import DeleteItem
from continuo.realtime.protocol.events import ItemDeleted
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger
from continuo.realtime.session.unit_of_work import Edit


async def execute(context: CommandContext, command: DeleteItem) -> None:
    item_id = command.item_id
    context.unit_of_work.find_complete(item_id, "item_delete_invalid_item_id")
    await context.apply(
        Edit(
            param="item_id",
            change=lambda now: now.delete_item(item_id),
            make_events=lambda _now, rewind: [ItemDeleted(item_id, rewind)],
        )
    )


def replay(context: CommandContext, command: DeleteItem, _result: str) -> bool:
    context.emit_unlogged(ItemDeleted(command.item_id))
    return True


HANDLER = CommandHandler(Trigger.EDIT, execute, replay)

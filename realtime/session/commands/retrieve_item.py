"""conversation.item.retrieve: send an item to the client."""

from continuo.realtime.protocol.commands import FetchItem
from continuo.realtime.protocol.events import ItemFetched
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger


async def execute(context: CommandContext, command: FetchItem) -> None:
    await context.unit_of_work.session_writer.check_ownership()
    item = context.unit_of_work.find(command.item_id, "item_retrieve_invalid_item_id")
    context.emit_unlogged(ItemFetched(item))


def replay(_context: CommandContext, _command: FetchItem, _result: str) -> bool:
    return False


HANDLER = CommandHandler(Trigger.RETRIEVE_ITEM, execute, replay)

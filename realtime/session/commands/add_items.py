"""Add several items to the end of the conversation, all or none."""

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.new_items import append_items, check_new_items
from continuo.realtime.conversation.rendering import count_chars
from continuo.realtime.protocol.commands import AddItems
from continuo.realtime.protocol.events import ConversationEvent, ItemAdded, Rewind
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger
from continuo.realtime.session.unit_of_work import Edit


async def execute(context: CommandContext, command: AddItems) -> None:
    """Add the items that the conversation does not have yet, in one write."""
    items = [item for item in command.items if context.conversation.find(item.id) != item]
    if not items:
        return
    check_new_items(context.conversation, items, "items")
    limits, settings = context.text_limits, context.unit_of_work.settings
    limits.check_input(settings, items, "items")

    def append(now: Conversation) -> Conversation:
        return append_items(now, items, limits, settings.truncation)

    def make_events(now: Conversation, rewind: Rewind | None) -> list[ConversationEvent]:
        return [
            ItemAdded(item, context.unit_of_work.previous_item_id(now, item.id), rewind)
            for item in items
        ]

    chars = sum(map(count_chars, items))
    with context.charge_text(chars):
        await context.apply(
            Edit(
                param="items",
                change=append,
                make_events=make_events,
                chars=chars,
                only_appends=True,
            )
        )


def replay(_context: CommandContext, _command: AddItems, _result: str) -> bool:
    return False


HANDLER = CommandHandler(Trigger.EDIT, execute, replay)

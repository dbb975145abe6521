"""input_text_buffer.commit: make the text buffer a user message."""

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import CommitText
from continuo.realtime.protocol.events import (
    ConversationEvent,
    ItemAdded,
    ItemDeleted,
    Rewind,
    TextCommitted,
)
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger
from continuo.realtime.session.unit_of_work import Edit


async def execute(context: CommandContext, command: CommitText) -> None:
    text, item_id = context.unit_of_work.draft, command.item_id
    if not text.strip():
        raise Refusal(
            "Error committing input text buffer: it is empty.",
            code="input_text_buffer_commit_empty",
        )
    item = MessageItem(id=item_id, role="user", parts=(ContentPart("input_text", text),))

    def make_events(now: Conversation, rewind: Rewind | None) -> list[ConversationEvent]:
        previous = context.unit_of_work.previous_item_id(now, item_id)
        return [TextCommitted(item_id, previous), ItemAdded(item, previous, rewind)]

    context.text_limits.check(len(text), "text")
    with context.charge_text(len(text)):
        await context.apply(
            Edit(
                param="text",
                change=lambda now: now.add_item(item),
                make_events=make_events,
                chars=len(text),
                only_appends=True,
                draft="",
                result=item_id,
            )
        )


def replay(context: CommandContext, _command: CommitText, result: str) -> bool:
    """Emit the commit again, then its item, or that the item was deleted since."""
    now = context.conversation
    item = now.find(result)
    previous = None if item is None else context.unit_of_work.previous_item_id(now, result)
    context.emit_unlogged(TextCommitted(result, previous))
    context.emit_unlogged(ItemDeleted(result) if item is None else ItemAdded(item, previous))
    return True


HANDLER = CommandHandler(Trigger.EDIT, execute, replay)

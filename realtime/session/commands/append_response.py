"""A response of the Responses API in a conversation: append its input and its output, all or
nothing."""

from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.new_items import check_new_items
from continuo.realtime.conversation.rendering import count_chars
from continuo.realtime.protocol.commands import AppendResponse
from continuo.realtime.protocol.events import ConversationEvent, ItemAdded, Rewind
from continuo.realtime.protocol.items import ReasoningItem
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger
from continuo.realtime.session.unit_of_work import Edit


async def execute(context: CommandContext, command: AppendResponse) -> None:
    """Append the items with the ids that were sampled for them, so that they are not rendered
    again."""
    items = (*command.input, *command.output)
    check_new_items(context.conversation, items, "input")

    def append(now: Conversation) -> Conversation:
        opened = now.with_items(command.input).open_response(command.response_id)
        return opened.commit_response(
            command.response_id, command.output, command.sampled_ids, command.effort
        )

    def make_events(now: Conversation, rewind: Rewind | None) -> list[ConversationEvent]:
        return [
            ItemAdded(item, context.unit_of_work.previous_item_id(now, item.id), rewind)
            for item in items
            if not isinstance(item, ReasoningItem)
        ]

    await context.apply(
        Edit(
            param="conversation",
            change=append,
            make_events=make_events,
            chars=sum(map(count_chars, items)),
            only_appends=True,
            result=command.response_id,
        )
    )


def replay(_context: CommandContext, _command: AppendResponse, _result: str) -> bool:
    return True


HANDLER = CommandHandler(Trigger.EDIT, execute, replay)

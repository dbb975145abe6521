"""conversation.item.truncate: cut an assistant message at the end of what the user received."""

import msgspec

from continuo.realtime.conversation.item_truncation import (
    require_assistant_message,
    require_audio,
    truncate_message,
)
from continuo.realtime.conversation.rendering import count_chars
from continuo.realtime.protocol.commands import TruncateItem
from continuo.realtime.protocol.events import ItemTruncated
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import SessionState, Trigger
from continuo.realtime.session.unit_of_work import Edit

_NOT_FOUND = "item_truncate_invalid_item_id"


async def execute(context: CommandContext, command: TruncateItem) -> None:
    unit, item_id, end = context.unit_of_work, command.item_id, command.text_end
    event = _make_event(command)
    message = require_assistant_message(unit.find(item_id, _NOT_FOUND))
    if end is None:
        require_audio(message, command)
        context.emit_unlogged(event)
        return
    is_cancelling = context.state_machine.state is SessionState.CANCELLING
    if is_cancelling and context.conversation.is_in_open_response(item_id):
        await context.active_responses.wait_until_committed()
    item = require_assistant_message(unit.find_complete(item_id, _NOT_FOUND))
    truncated = truncate_message(item, command, end)
    if truncated is item:
        context.emit_unlogged(event)
        return
    await context.apply(
        Edit(
            param="text_end",
            change=lambda now: now.truncate_item(truncated, context.model_text),
            make_events=lambda _now, rewind: [msgspec.structs.replace(event, rewind=rewind)],
            chars=count_chars(truncated),
        )
    )


def replay(context: CommandContext, command: TruncateItem, _result: str) -> bool:
    context.emit_unlogged(_make_event(command))
    return True


def _make_event(command: TruncateItem) -> ItemTruncated:
    return ItemTruncated(
        command.item_id, command.content_index, command.audio_end_ms, command.text_end
    )


HANDLER = CommandHandler(Trigger.EDIT, execute, replay)

"""response.create: start a response of the conversation, or out of band."""

import msgspec

from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.conversation.text_limits import inline_items
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.output_grammar import without_idle_reasoning
from continuo.realtime.protocol.commands import CreateSessionResponse
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger


async def execute(context: CommandContext, command: CreateSessionResponse) -> None:
    trigger = (
        Trigger.CREATE_OUT_OF_BAND_RESPONSE if command.is_out_of_band else Trigger.CREATE_RESPONSE
    )
    context.state_machine.check(trigger)
    template = context.conversation.template
    command = msgspec.structs.replace(
        command, settings=without_idle_reasoning(command.settings, template)
    )
    items = inline_items(command.context or ())
    chars = count_head_chars(command.settings) + sum(map(count_chars, items))
    with context.charge_request(), context.charge_text(chars):
        context.text_limits.check_response(command.settings, items)
        await context.write_pending_results()
        response_id = await context.active_responses.create(command, context.request)
    context.state_machine.advance(trigger)  # a response may have ended meanwhile
    context.record(response_id)


def replay(context: CommandContext, _command: CreateSessionResponse, result: str) -> bool:
    """Emit the logged events of the response again. Raises Refusal if none are logged any more."""
    events = context.unit_of_work.event_log.events_of_response(result)
    if not events:
        raise Refusal(
            f"The response '{result}' was created for this event_id before, and has ended.",
            code="response_already_created",
            param="event_id",
        )
    for event in events:
        context.emit_unlogged(event)
    return True


HANDLER = CommandHandler(None, execute, replay)

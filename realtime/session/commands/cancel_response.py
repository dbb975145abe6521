"""response.cancel: end an active response early."""

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import CancelResponse
from continuo.realtime.protocol.events import ResponseEnded
from continuo.realtime.session.commands.context import CommandContext, CommandHandler
from continuo.realtime.session.state import Trigger

_NOT_ACTIVE = "response_cancel_not_active"


async def execute(context: CommandContext, command: CancelResponse) -> None:
    """Cancel a response and record its id; "" if none was active."""
    try:
        cancelled_id = await _cancel(context, command.response_id)
    except Refusal:
        context.record_unwritten("")
        raise
    context.record_unwritten(cancelled_id)


async def _cancel(context: CommandContext, response_id: str | None) -> str:
    """Cancel a response and return its id. Raises Refusal if it is not active."""
    responses = context.active_responses
    out_of_band = None if response_id is None else responses.find_out_of_band(response_id)
    if out_of_band is not None:
        await out_of_band.cancel()
        return out_of_band.response.id
    main = responses.main
    if response_id is not None and main is not None and response_id != main.response.id:
        raise Refusal(
            f"Cancellation failed: response '{response_id}' is not active.",
            code=_NOT_ACTIVE,
            param="response_id",
        )
    context.state_machine.advance(Trigger.CANCEL)
    assert main is not None, "the state has an active response"
    await main.cancel()
    return main.response.id


def replay(context: CommandContext, _command: CancelResponse, result: str) -> bool:
    """Emit the end of the cancelled response `result` again, if it has ended.

    Returns False if the response is being generated and is not cancelled, after a takeover by a
    gateway that did not know of the cancellation yet. Raises Refusal if `result` is empty: no
    response was active then.
    """
    if not result:
        raise Refusal(
            "Cancellation failed: there was nothing to cancel when this event_id was used first.",
            code=_NOT_ACTIVE,
            param="event_id",
        )
    for generation in context.active_responses:
        if generation.response.id == result:
            return generation.is_cancelled
    for event in context.unit_of_work.event_log.events_of_response(result):
        if isinstance(event, ResponseEnded):
            context.emit_unlogged(event)
    return True


HANDLER = CommandHandler(None, execute, replay)

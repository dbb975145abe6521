"""What is answered to who asks a second time: under a client's event_id the same is done once. What
came of it may be gone since; then it is not made again."""

from typing import assert_never

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import (
    AddItem,
    AppendText,
    CancelResponse,
    ClearText,
    CommitText,
    ConfigureSession,
    ConversationCommand,
    CreateSessionResponse,
    DeleteItem,
    FetchItem,
    ReplaceText,
    TruncateItem,
)
from continuo.realtime.protocol.events import (
    ItemAdded,
    ItemDeleted,
    ItemTruncated,
    ResponseEnded,
    SessionConfigured,
    TextAppended,
    TextCleared,
    TextCommitted,
)
from continuo.realtime.session.active_responses import ActiveResponses
from continuo.realtime.session.unit_of_work import UnitOfWork


def replay(
    command: ConversationCommand,
    result: str,
    unit_of_work: UnitOfWork,
    active_responses: ActiveResponses,
) -> bool:
    """`result`: what came of it. False: it is to be done, which cannot be twice. Raises Refusal."""
    say = unit_of_work.event_log.emit_unlogged
    match command:
        case AddItem(item=item):
            known = item.id if item.id.startswith(result) else result  # a long one was cut
            if not _replay_item(known, unit_of_work):
                say(ItemAdded(msgspec.structs.replace(item, id=known), None))
                say(ItemDeleted(known))
        case CommitText():
            found = unit_of_work.conversation.find(result)
            say(
                TextCommitted(
                    result, unit_of_work.conversation.previous_item_id(result) if found else None
                )
            )
            if not _replay_item(result, unit_of_work):
                say(ItemDeleted(result))
        case DeleteItem(item_id=item_id):
            say(ItemDeleted(item_id))
        case TruncateItem(item_id=item_id, content_index=index):
            say(ItemTruncated(item_id, index, command.audio_end_ms, command.text_end))
        case AppendText() | ReplaceText():
            say(TextAppended(len(unit_of_work.draft)))
        case ClearText():
            say(TextCleared())
        case ConfigureSession():
            say(SessionConfigured(unit_of_work.settings))
        case CreateSessionResponse():
            _replay_response(result, unit_of_work)
        case CancelResponse():
            return _replay_cancel(result, unit_of_work, active_responses)
        case FetchItem():
            return False
        case _:
            assert_never(command)
    return True


def _replay_item(item_id: str, unit_of_work: UnitOfWork) -> bool:
    """False: it is gone."""
    item = unit_of_work.conversation.find(item_id)
    if item is None:
        return False
    unit_of_work.event_log.emit_unlogged(
        ItemAdded(item, unit_of_work.conversation.previous_item_id(item_id))
    )
    return True


def _replay_response(response_id: str, unit_of_work: UnitOfWork) -> None:
    told = unit_of_work.event_log.events_of_response(response_id)
    if not told:
        raise Refusal(
            f"The response '{response_id}' was created for this event_id before, and is over.",
            code="response_already_created",
            param="event_id",
        )
    for tell in told:
        unit_of_work.event_log.emit_unlogged(tell)


def _replay_cancel(
    response_id: str, unit_of_work: UnitOfWork, active_responses: ActiveResponses
) -> bool:
    """That answer and no other one is stopped: it may run again elsewhere, where nobody knew yet
    that it was stopped."""
    if not response_id:
        raise Refusal(
            "Cancellation failed: there was nothing to cancel when this event_id was used first.",
            code="response_cancel_not_active",
            param="event_id",
        )
    for answering in active_responses:
        if answering.response.id == response_id:
            return answering.is_cancelled
    for tell in unit_of_work.event_log.events_of_response(response_id):
        if isinstance(tell, ResponseEnded):
            unit_of_work.event_log.emit_unlogged(tell)
    return True

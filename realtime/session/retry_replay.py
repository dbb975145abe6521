"""Idempotent requests: a client event_id is executed once; a retry gets the recorded outcome.

An item or a response that has been deleted since is not created again.
"""

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
    """Replay the outcome `result` to the client.

    Returns False for commands that may run again: naturally idempotent ones, and a cancellation
    that a takeover has lost. Raises Refusal.
    """
    emit = unit_of_work.event_log.emit_unlogged
    match command:
        case AddItem(item=item):
            # Of a long id, only the first 255 bytes were recorded.
            original_id = item.id if item.id.startswith(result) else result
            if not _replay_item(original_id, unit_of_work):
                emit(ItemAdded(msgspec.structs.replace(item, id=original_id), None))
                emit(ItemDeleted(original_id))
        case CommitText():
            _replay_commit(result, unit_of_work)
        case DeleteItem(item_id=item_id):
            emit(ItemDeleted(item_id))
        case TruncateItem(item_id=item_id, content_index=index):
            emit(ItemTruncated(item_id, index, command.audio_end_ms, command.text_end))
        case AppendText() | ReplaceText():
            emit(TextAppended(len(unit_of_work.draft)))
        case ClearText():
            emit(TextCleared())
        case ConfigureSession():
            emit(SessionConfigured(unit_of_work.settings))
        case CreateSessionResponse():
            _replay_response(result, unit_of_work)
        case CancelResponse():
            return _replay_cancel(result, unit_of_work, active_responses)
        case FetchItem():
            return False
        case _:
            assert_never(command)
    return True


def _replay_commit(item_id: str, unit_of_work: UnitOfWork) -> None:
    """Emit the commit of the text buffer again, then its item, or ItemDeleted if the item was
    deleted since."""
    conversation, emit = unit_of_work.conversation, unit_of_work.event_log.emit_unlogged
    found = conversation.find(item_id)
    emit(TextCommitted(item_id, conversation.previous_item_id(item_id) if found else None))
    if not _replay_item(item_id, unit_of_work):
        emit(ItemDeleted(item_id))


def _replay_item(item_id: str, unit_of_work: UnitOfWork) -> bool:
    """Emit an item again. Returns False if it has been deleted."""
    item = unit_of_work.conversation.find(item_id)
    if item is None:
        return False
    unit_of_work.event_log.emit_unlogged(
        ItemAdded(item, unit_of_work.conversation.previous_item_id(item_id))
    )
    return True


def _replay_response(response_id: str, unit_of_work: UnitOfWork) -> None:
    """Emit the logged events of a response again. Raises Refusal if none are logged any more."""
    events = unit_of_work.event_log.events_of_response(response_id)
    if not events:
        raise Refusal(
            f"The response '{response_id}' was created for this event_id before, and has ended.",
            code="response_already_created",
            param="event_id",
        )
    for event in events:
        unit_of_work.event_log.emit_unlogged(event)


def _replay_cancel(
    response_id: str, unit_of_work: UnitOfWork, active_responses: ActiveResponses
) -> bool:
    """Replay the cancellation of a response. `response_id` is empty if no response was active when
    the cancellation was first requested.

    Returns False if the response is being generated and is not cancelled, because a takeover has
    lost the cancellation. Raises Refusal if `response_id` is empty.
    """
    if not response_id:
        raise Refusal(
            "Cancellation failed: there was nothing to cancel when this event_id was used first.",
            code="response_cancel_not_active",
            param="event_id",
        )
    for generation in active_responses:
        if generation.response.id == response_id:
            return generation.is_cancelled
    for event in unit_of_work.event_log.events_of_response(response_id):
        if isinstance(event, ResponseEnded):
            unit_of_work.event_log.emit_unlogged(event)
    return True

"""What is answered to who asks a second time: under a client's event_id the same is done once. What
came of it may be gone since; then it is not made again."""

from typing import assert_never

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import (
    AddItem,
    AppendText,
    Ask,
    Cancel,
    ClearText,
    CommitText,
    Configure,
    DropItem,
    FetchItem,
    ReplaceText,
    Respond,
    TruncateItem,
)
from continuo.realtime.protocol.events import (
    AnswerEnded,
    Configured,
    ItemAdded,
    ItemDropped,
    ItemTruncated,
    TextAppended,
    TextCleared,
    TextCommitted,
)
from continuo.realtime.session.active_responses import Answers
from continuo.realtime.session.unit_of_work import History


def say_again(ask: Ask, result: str, history: History, answers: Answers) -> bool:
    """`result`: what came of it. False: it is to be done, which cannot be twice. Raises Refusal."""
    say = history.transcript.aside
    match ask:
        case AddItem(item=item):
            known = item.id if item.id.startswith(result) else result  # a long one was cut
            if not _say_item(known, history):
                say(ItemAdded(msgspec.structs.replace(item, id=known), None))
                say(ItemDropped(known))
        case CommitText():
            found = history.conversation.find(result)
            say(TextCommitted(result, history.conversation.previous(result) if found else None))
            if not _say_item(result, history):
                say(ItemDropped(result))
        case DropItem(item_id=item_id):
            say(ItemDropped(item_id))
        case TruncateItem(item_id=item_id, content_index=index):
            say(ItemTruncated(item_id, index, ask.audio_end_ms, ask.text_end))
        case AppendText() | ReplaceText():
            say(TextAppended(len(history.draft)))
        case ClearText():
            say(TextCleared())
        case Configure():
            say(Configured(history.settings))
        case Respond():
            _say_answer(result, history)
        case Cancel():
            return _say_cancelled(result, history, answers)
        case FetchItem():
            return False
        case _:
            assert_never(ask)
    return True


def _say_item(item_id: str, history: History) -> bool:
    """False: it is gone."""
    item = history.conversation.find(item_id)
    if item is None:
        return False
    history.transcript.aside(ItemAdded(item, history.conversation.previous(item_id)))
    return True


def _say_answer(answer_id: str, history: History) -> None:
    told = history.transcript.of_answer(answer_id)
    if not told:
        raise Refusal(
            f"The response '{answer_id}' was created for this event_id before, and is over.",
            code="response_already_created",
            param="event_id",
        )
    for tell in told:
        history.transcript.aside(tell)


def _say_cancelled(answer_id: str, history: History, answers: Answers) -> bool:
    """That answer and no other one is stopped: it may run again elsewhere, where nobody knew yet
    that it was stopped."""
    if not answer_id:
        raise Refusal(
            "Cancellation failed: there was nothing to cancel when this event_id was used first.",
            code="response_cancel_not_active",
            param="event_id",
        )
    for answering in answers:
        if answering.answer.id == answer_id:
            return answering.cancelled
    for tell in history.transcript.of_answer(answer_id):
        if isinstance(tell, AnswerEnded):
            history.transcript.aside(tell)
    return True

"""Outbox of unacknowledged events. Bookkeeping alone, without sockets or clocks.

An event stays in the outbox until the server acknowledges it. After a lost connection it is sent
again, in order and with the same event id, which the server uses as an idempotency key.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from continuo.realtime.client.errors import EventRefusedError
from continuo.realtime.client.events import (
    BufferAppended,
    BufferCleared,
    BufferCommitted,
    ErrorBody,
    ErrorEvent,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    JsonObject,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    SessionClosed,
    SessionUpdated,
)

_SEEN_RESPONSES_MAX = 64


class PendingEvent(msgspec.Struct, eq=False):
    event: JsonObject
    resend_as: Sequence[JsonObject]
    """The events to send instead after a lost connection; the last one has the same id."""
    acknowledged: "asyncio.Future[ServerEvent]"
    is_sent: bool = False


class Outbox:
    def __init__(self) -> None:
        self._pending: list[PendingEvent] = []
        self._seen_responses: OrderedDict[str, None] = OrderedDict()
        """Responses announced already: a repeated `response.created` acknowledges nothing."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def events(self) -> list[JsonObject]:
        """Unacknowledged events in order, as they would be sent again."""
        return [event for pending in self._pending for event in pending.resend_as]

    @property
    def futures(self) -> "list[asyncio.Future[ServerEvent]]":
        return [pending.acknowledged for pending in self._pending]

    def expect_again(self, response_id: str | None) -> None:
        """Take the next announcement of a response as an acknowledgement, though it was announced
        before."""
        self._seen_responses.pop(response_id or "", None)

    def add(
        self, event: JsonObject, resend_as: Sequence[JsonObject] = (), position: int | None = None
    ) -> "asyncio.Future[ServerEvent]":
        """Queue `event`, at `position` or at the end. Returns a future of the acknowledging event;
        it raises EventRefusedError or ConnectionClosedError."""
        future: asyncio.Future[ServerEvent] = asyncio.get_running_loop().create_future()
        pending = PendingEvent(event, resend_as or [event], future)
        self._pending.insert(len(self._pending) if position is None else position, pending)
        return future

    def take_unsent(self, last_id: str | None = None) -> list[JsonObject]:
        """Take the events not yet sent on this connection, and mark them as sent: all, or those up
        to the event with the id `last_id`."""
        taken: list[JsonObject] = []
        for pending in self._pending:
            if not pending.is_sent:
                pending.is_sent = True
                taken.append(pending.event)
            if pending.event["event_id"] == last_id:
                break
        return taken

    def mark_unsent(self) -> None:
        """Mark every event as unsent, because the connection was lost."""
        again: list[PendingEvent] = []
        for pending in self._pending:
            if not pending.is_sent:
                again.append(pending)
                continue
            *before, last = pending.resend_as
            for event in before:
                again.append(PendingEvent(event, [event], _unobserved()))
            again.append(PendingEvent(last, [last], pending.acknowledged))
        self._pending = again

    def remove(self, event_id: str) -> None:
        """Remove an event without an outcome."""
        self._pending = [one for one in self._pending if one.event["event_id"] != event_id]

    def receive(self, event: ServerEvent) -> str | None:
        """Remove the event that a server event acknowledges or refuses. Returns its id."""
        if isinstance(event, ErrorEvent):
            return self._refuse(event.error)
        if isinstance(event, ResponseCreated) and self._has_seen(event.response.id):
            return None
        for index, pending in enumerate(self._pending):
            if _acknowledges(pending.event, event):
                del self._pending[index]
                if not pending.acknowledged.done():
                    pending.acknowledged.set_result(event)
                return pending.event["event_id"]
        return None

    def reject(self, event_id: str, code: str, message: str) -> None:
        """Refuse an event that cannot be sent."""
        self._refuse(ErrorBody(message=message, code=code, event_id=event_id))

    def reject_all(self, error: Exception) -> None:
        """End every event with `error`. The events stay readable in `events`."""
        for pending in self._pending:
            if not pending.acknowledged.done():
                pending.acknowledged.set_exception(error)

    def _refuse(self, error: ErrorBody) -> str | None:
        for index, pending in enumerate(self._pending):
            if pending.event["event_id"] == error.event_id:
                del self._pending[index]
                if not pending.acknowledged.done():
                    pending.acknowledged.set_exception(_refusal(error))
                return error.event_id
        return None

    def _has_seen(self, response_id: str) -> bool:
        has_seen = response_id in self._seen_responses
        self._seen_responses[response_id] = None
        if len(self._seen_responses) > _SEEN_RESPONSES_MAX:
            self._seen_responses.popitem(last=False)
        return has_seen


def _refusal(error: ErrorBody) -> EventRefusedError:
    is_temporary = error.type == "server_error"
    return EventRefusedError(
        error.code or error.type, error.message, error.param, is_temporary=is_temporary
    )


def _unobserved() -> "asyncio.Future[ServerEvent]":
    """Create a future whose exception, if any, is of no interest."""
    future: asyncio.Future[ServerEvent] = asyncio.get_running_loop().create_future()
    future.add_done_callback(retrieve_exception)
    return future


def retrieve_exception(future: "asyncio.Future[Any]") -> None:
    """Mark the exception of a future as retrieved, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def _acknowledges(sent: JsonObject, received: ServerEvent) -> bool:
    """Whether `received` acknowledges `sent`."""
    match received:
        case SessionUpdated():
            resume: JsonObject = received.session.get("resume") or {}
            is_resume = resume.get("resumed")
            return sent["type"] == "session.update" and not is_resume
        case SessionClosed():
            return sent["type"] == "session.close"
        case ItemAdded():
            created = sent["type"] == "conversation.item.create"
            return created and sent["item"]["id"] == received.item.id
        case ItemRetrieved():
            retrieved = sent["type"] == "conversation.item.retrieve"
            return retrieved and sent["item_id"] == received.item.id
        case ItemTruncated():
            truncated = sent["type"] == "conversation.item.truncate"
            return truncated and sent["item_id"] == received.item_id
        case ItemDeleted():
            deleted = sent["type"] == "conversation.item.delete"
            return deleted and sent["item_id"] == received.item_id
        case ResponseCreated():
            return sent["type"] == "response.create"
        case ResponseDone():
            cancelled = sent["type"] == "response.cancel"
            return cancelled and sent.get("response_id") in (None, received.response.id)
        case BufferAppended():
            return sent["type"] in ("input_text_buffer.append", "input_text_buffer.replace")
        case BufferCleared():
            return sent["type"] == "input_text_buffer.clear"
        case BufferCommitted():
            return sent["type"] == "input_text_buffer.commit"
        case _:
            return False

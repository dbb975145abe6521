"""The message being typed or dictated, synchronized with the server's input buffer.

The server prefills the text as it arrives, so that generation starts at once on commit. Only the
difference is sent; while one write is in flight, later changes are merged into the next.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from continuo.realtime.client.errors import ConnectionClosedError, EventRefusedError
from continuo.realtime.client.events import (
    BufferAppended,
    BufferCommitted,
    JsonObject,
    ServerEvent,
)
from continuo.realtime.client.new_id import new_id
from continuo.realtime.client.outbox import retrieve_exception

_REPLACE = "input_text_buffer.replace"


class SendEvent(Protocol):
    """Sends an event; after a lost connection `resend_as` is sent instead."""

    def __call__(
        self, event: JsonObject, resend_as: Sequence[JsonObject] = ()
    ) -> "asyncio.Future[ServerEvent]": ...


class Draft:
    def __init__(self, send: SendEvent) -> None:
        self._send = send
        self._text = ""
        self._buffer: str | None = ""
        """Content of the server's buffer once every sent event is applied; None if unknown."""
        self._in_flight: asyncio.Future[ServerEvent] | None = None
        """The write that awaits its acknowledgement."""
        self._last_write: tuple[JsonObject, asyncio.Future[ServerEvent]] | None = None
        """The last write into the buffer since the last commit."""
        self._refusal: EventRefusedError | None = None

    @property
    def text(self) -> str:
        return self._text

    @property
    def refusal(self) -> EventRefusedError | None:
        """Why the server refused the current text; `commit` would raise the same."""
        return self._refusal

    def append(self, text: str) -> None:
        """Append words as they come."""
        self.set(self._text + text)

    def set(self, text: str) -> None:
        """Replace the draft with `text`; only the difference is sent."""
        self._text = text
        if self._in_flight is None:
            self._send_changes()

    def commit(self) -> "asyncio.Future[str | None]":
        """Make the draft a message of the user, and begin an empty one. Returns a future of the
        message's id; None if the draft was empty, in which case nothing is sent. The future raises
        EventRefusedError if the server refused the text; no message is added then."""
        committed: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        if self._text and self._refusal is None:
            self._send_commit(committed)
        elif self._refusal is None:
            self._send_changes()
            committed.set_result(None)
        else:
            committed.set_exception(self._refusal)
            self._write({"type": "input_text_buffer.clear"})
        self._text, self._buffer = "", ""
        self._in_flight = self._last_write = self._refusal = None
        return committed

    def _send_commit(self, committed: "asyncio.Future[str | None]") -> None:
        if self._in_flight is not None and self._text != self._buffer:
            self._buffer = None  # Replace all of it, in case the write in flight is refused.
        self._send_changes()
        again: list[JsonObject] = []
        if self._last_write is not None:
            # A server that lost the buffer needs the text again; any other ignores the repeated id.
            again = [self._last_write[0] | {"type": _REPLACE, "text": self._text}]
        commit: JsonObject = {"type": "input_text_buffer.commit"}
        write = self._last_write and self._last_write[1]
        self._send(commit, [*again, commit]).add_done_callback(
            lambda done: self._settle(committed, done, write)
        )

    def _settle(
        self,
        committed: "asyncio.Future[str | None]",
        acknowledged: "asyncio.Future[ServerEvent]",
        write: "asyncio.Future[ServerEvent] | None",
    ) -> None:
        """Settle a commit. If the last write was refused, so is the commit: the server has
        committed what the buffer held before, or found it empty."""
        error = acknowledged.exception()
        event = None if error else acknowledged.result()
        item_id = event.item_id if isinstance(event, BufferCommitted) else None
        refused = write.exception() if write is not None and write.done() else None
        if refused is not None and item_id is not None:
            deleted = self._send({"type": "conversation.item.delete", "item_id": item_id})
            deleted.add_done_callback(retrieve_exception)
        error = refused or error
        if committed.done():
            return
        if error:
            committed.set_exception(error)
        else:
            committed.set_result(item_id)

    def mark_buffer_unknown(self) -> None:
        """Mark the content of the server's buffer as unknown: the next write replaces all of it."""
        self._buffer = None
        self._in_flight = None

    def sync(self) -> None:
        """Send the draft again if the server's buffer is out of date."""
        if not self._text and self._buffer is None:
            self._buffer = ""
        self._send_changes()

    def _send_changes(self) -> None:
        text, buffer = self._text, self._buffer
        if text == buffer:
            return
        self._buffer = text
        self._refusal = None
        replace: JsonObject = {"type": _REPLACE, "text": text}
        if not text:
            self._write({"type": "input_text_buffer.clear"})
        elif buffer and text.startswith(buffer):
            append = {"type": "input_text_buffer.append", "text": text[len(buffer) :]}
            self._write(append, [replace])
        else:
            # Also of a buffer that should be empty: a refused commit has left the text in it.
            self._write(replace)

    def _write(self, event: JsonObject, resend_as: Sequence[JsonObject] = ()) -> None:
        expected = len(self._buffer or "")
        event = event | {"event_id": new_id("event")}
        write = self._send(event, resend_as)
        self._in_flight = write
        self._last_write = (event, write)
        write.add_done_callback(lambda done: self._on_settled(done, expected))

    def _on_settled(self, write: "asyncio.Future[ServerEvent]", expected: int) -> None:
        error = write.exception()
        if self._in_flight is not write or isinstance(error, ConnectionClosedError):
            return
        self._in_flight = None
        self._refusal = error if isinstance(error, EventRefusedError) else None
        is_stale = self._text != self._buffer
        event = None if error else write.result()
        if event is None or (isinstance(event, BufferAppended) and event.length != expected):
            self._buffer = None
        if is_stale:
            self._send_changes()

"""The connection of a client: opened, used, and opened again after each loss."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from continuo.realtime.client.connection import (
    ConnectionLost,
    ConnectionOptions,
    ConnectionState,
    ResumeOutcome,
    compute_backoff_s,
    explain_close,
    open_connection,
    realtime_url,
    sleep_until_retry,
)
from continuo.realtime.client.errors import ConnectionClosedError
from continuo.realtime.client.events import (
    ErrorBody,
    ErrorEvent,
    JsonObject,
    KVResidency,
    ServerEvent,
    decode_event,
)
from continuo.realtime.client.subscription import Broadcast

_SESSION_LOST_CODES = ("session_not_found", "session_expired", "resume_gap")
"""Error codes that report a lost session, which can be rehydrated in a new one."""


class SessionLost(Exception):
    """The server no longer has the session. `code`: its error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class ConnectionHandler:
    """The client's side of a connection."""

    has_opened: Callable[[], bool]
    """Whether the client was connected once; until then a lost connection is final."""
    query: Callable[[], dict[str, str]]
    """Returns the parameters of the next connection."""
    take_unsent: Callable[[], Sequence[JsonObject]]
    """Returns the events to send now."""
    refuse: Callable[[str, str, str], None]
    """Refuses the event with an id, by a code and a message: it cannot be sent."""
    on_event: Callable[[ServerEvent], None]
    """Raises SessionLost if an event shows that the session is lost."""
    on_session_lost: Callable[[SessionLost], None]
    """Prepares for a new session in place of the lost one. Raises ConnectionClosedError if there is
    to be none."""
    on_disconnect: Callable[[], None]


class ReconnectingConnection:
    """A connection that is replaced when it is lost, until `close`."""

    def __init__(self, url: str, options: ConnectionOptions, handler: ConnectionHandler) -> None:
        self._url = url
        self._options = options
        self._handler = handler
        self.state = ConnectionState(phase="connecting")
        self.states = Broadcast[ConnectionState]()
        self.is_closing = False
        self._wake_writer = asyncio.Event()
        self._wake_retry = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._last_error: ErrorBody | None = None
        """The last error that names no client event: why the server closes the connection."""

    async def run(self) -> None:
        """Connect, and connect again after each loss. Returns once the client leaves. Raises
        ConnectionClosedError if no later attempt can succeed, or none did in time."""
        clock = asyncio.get_running_loop().time
        attempt, reason, give_up_at = 0, "", 0.0
        cause: ConnectionLost | None = None
        while not self.is_closing:
            self._set_state(ConnectionState(phase="connecting", reason=reason, attempt=attempt))
            try:
                await self._use_connection()
            except SessionLost as lost:
                attempt, reason = 0, str(lost)
                self._handler.on_session_lost(lost)
            except ConnectionLost as lost:
                if self.is_closing:
                    return
                if cause is None or self.state.phase == "open":
                    attempt, cause = 0, lost
                    give_up_at = clock() + self._options.reconnect_timeout_s
                left_s = give_up_at - clock()
                if not self._handler.has_opened() or left_s <= 0:
                    raise ConnectionClosedError(cause.code, cause.reason) from None
                attempt, reason = attempt + 1, cause.reason
                await self._wait_before_retry(attempt, reason, left_s)

    def mark_open(self, outcome: ResumeOutcome, kv: KVResidency | None) -> None:
        """The server has opened or resumed the session: events can be sent."""
        self._limit.reschedule(None)
        self._set_state(ConnectionState(phase="open", outcome=outcome, kv=kv))

    def wake_writer(self) -> None:
        """Send what is unsent, if the connection is open."""
        self._wake_writer.set()

    def retry_now(self) -> None:
        """Skip the remaining delay before the next attempt to connect."""
        self._wake_retry.set()

    async def close(self) -> None:
        """Close the connection for good."""
        self.is_closing = True
        if self._socket is not None:
            await self._socket.close()

    def end(self, reason: str) -> None:
        """Publish that there is no connection any more, and why."""
        self._set_state(ConnectionState(phase="closed", reason=reason))
        self.states.end()

    async def _wait_before_retry(self, attempt: int, reason: str, left_s: float) -> None:
        delay_s = min(compute_backoff_s(attempt, self._options), left_s)
        self._set_state(
            ConnectionState(phase="waiting", reason=reason, attempt=attempt, retry_after_s=delay_s)
        )
        self._wake_retry.clear()
        await sleep_until_retry(delay_s, self._wake_retry)

    async def _use_connection(self) -> None:
        """Open a connection and use it until it is closed. Raises ConnectionLost, SessionLost, or
        ConnectionClosedError."""
        url = realtime_url(self._url, self._handler.query())
        async with open_connection(url, self._options) as socket:
            self._socket = socket
            writer = asyncio.create_task(self._write(socket))
            try:
                async with asyncio.timeout(self._options.connect_timeout_s) as self._limit:
                    await self._read(socket)
            except TimeoutError:
                raise ConnectionLost("unreachable", "the server does not respond") from None
            except ConnectionClosed as closed:
                if self.is_closing:
                    return
                error = self._last_error
                if error is not None and error.code in _SESSION_LOST_CODES:
                    raise SessionLost(error.code, error.message) from None
                raise explain_close(closed, error) from None
            finally:
                writer.cancel()
                self._socket = None
                self._last_error = None
                self._handler.on_disconnect()

    async def _write(self, socket: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._wake_writer.wait()
                self._wake_writer.clear()
                if self.state.phase != "open":
                    continue
                for event in self._handler.take_unsent():
                    frame = msgspec.json.encode(event)
                    if len(frame) <= self._options.frame_bytes_max:
                        await socket.send(frame, text=True)
                    else:
                        message = f"The event is {len(frame):,} bytes long; the maximum is "
                        message += f"{self._options.frame_bytes_max:,}."
                        self._handler.refuse(event["event_id"], "frame_too_large", message)

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            frame = await socket.recv()
            try:
                event = decode_event(frame)
            except msgspec.DecodeError:
                raise ConnectionLost("malformed_frame", "a malformed frame") from None
            if isinstance(event, ErrorEvent) and event.error.event_id is None:
                self._last_error = event.error
            self._handler.on_event(event)

    def _set_state(self, state: ConnectionState) -> None:
        self.state = state
        self.states.publish(state)

"""A connection of the Realtime API: frames from the socket to the session, events back.

    socket ──recv──▶ decode ──▶ decode_command ──▶ session.execute
    socket ◀──send── outbox ◀── encode ◀────────── event log

While the outbox is full, the responses are paused, and commands wait, because their answers would
add to it. An interruption does not wait: you can cancel a response over a slow line.

A bad frame is refused; too many in a row close the connection. When the connection ends, its
session is parked, to be resumed by another connection, unless the session ends too.
"""

import asyncio
import contextlib
import logging
from functools import partial

import msgspec

from continuo.realtime import metrics
from continuo.realtime.errors import BadFrame, ConnectionCloseError, Refusal, internal_error
from continuo.realtime.event_log.event_id import make_unlogged_event_id
from continuo.realtime.event_log.replay import EmittedEvent
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.commands import (
    CancelResponse,
    CreateSessionResponse,
    TruncateItem,
)
from continuo.realtime.protocol.realtime_api import (
    ClientEvent,
    CloseRequest,
    Dialect,
    Encoder,
    IgnoredAudioEvent,
    audio_not_supported,
    decode_command,
    encode_frame,
    extract_event_id,
)
from continuo.realtime.registry.access import Credentials, ForkRequest, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.request_context import current_request, name_tenant
from continuo.realtime.session.session import Session
from continuo.realtime.store import IdempotentRequest
from continuo.realtime.transport.outbox import Outbox
from continuo.realtime.transport.socket import Socket, SocketClosed

log = logging.getLogger(__name__)

INTERRUPTIONS = (CancelResponse, TruncateItem, IgnoredAudioEvent, CloseRequest)
"""Commands that stop output, or add none."""
_CANCEL_TIMEOUT_S = 0.5
"""Time limit for cancelling responses before the connection is closed."""
_FLUSH_TIMEOUT_S = 2.0
"""Time limit for sending the rest of the outbox before the connection is closed."""


class Connection:
    """A connection and its session, from the upgrade to the close."""

    def __init__(
        self,
        socket: Socket,
        registry: Registry,
        limits: Limits,
        model: str,
        credentials: Credentials | None = None,
        session_request: ForkRequest | ResumeRequest | None = None,
        *,
        announces_beta: bool = False,
    ) -> None:
        """Args:
        socket: to one client, accepted.
        registry: opens, resumes and parks the session.
        limits: on frames, on what is unsent and on the lifetime of the connection.
        model: name of the model in events.
        credentials: of the client; None: those of a server without keys.
        session_request: the session to fork or to resume; None opens a new session.
        announces_beta: whether the client announces the beta version of the API.
        """
        self._dialect = Dialect(announces_beta=announces_beta)
        self._socket = socket
        self._registry = registry
        self._limits = limits
        self._id = (
            session_request.session_id
            if isinstance(session_request, ResumeRequest)
            else generate_id("sess")
        )
        self._credentials = credentials or Credentials()
        name_tenant(self._credentials.tenant)
        current_request().session = self._id
        tenant = registry.tenants.of(self._credentials.tenant)
        self._ledger = tenant.ledger
        hold = partial(self._ledger.hold, "output")
        self._outbox = Outbox(socket, limits, self._dialect.encode, hold, self._on_full_outbox)
        self._encoder = Encoder(self._id, model, tenant.rate_limits.levels)
        self._session_request = session_request
        self._bad_frames = 0
        self._session: Session | None = None
        self._pausing: asyncio.Task[None] | None = None
        """Pauses the responses while the outbox is full."""
        loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[tuple[CloseCode, str]] = loop.create_future()
        self._is_closed_by_client = False
        """Whether the client has closed its session."""
        self._ends_session = False
        """Whether the server ends the session with the connection, instead of parking it."""
        self._cancels_responses = False
        """Whether the active responses are cancelled when the connection ends."""

    async def run(self) -> None:
        """Serve the connection until it is closed, beginning with `session.created` or missed
        events."""
        with contextlib.closing(self._outbox):
            await self._serve()

    async def _serve(self) -> None:
        try:
            self._ledger.admit_operation()
            session = await self._open_session()
        except Refusal as refusal:
            await self.refuse(refusal)
            return
        self._session = session
        if self._outbox.is_full:
            self._on_full_outbox()
        reading = asyncio.create_task(
            self._socket.account.timed(self._read, session), name=f"read {self._id}"
        )
        sending = asyncio.create_task(self._outbox.run(), name=f"send {self._id}")
        end: tuple[CloseCode, str] | None = (CloseCode.SERVICE_RESTART, "the server stops")
        try:
            end = await self._wait_for_end(reading, sending, session)
        finally:
            reading.cancel()
            if self._pausing is not None:
                self._pausing.cancel()
                await asyncio.gather(self._pausing, return_exceptions=True)
            if self._cancels_responses:
                await self._cancel_active_responses(session, reading)
            await self._release_session(session)
            if end is not None and not sending.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._outbox.wait_until_sent(), _FLUSH_TIMEOUT_S)
            sending.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            self._session = self._pausing = None  # break reference cycles
            await self._socket.close(*(end or (CloseCode.NORMAL_CLOSURE, "")))

    async def _open_session(self) -> Session:
        """Open, fork or resume the session. Raises Refusal."""
        if isinstance(self._session_request, ResumeRequest):
            return await self._registry.resume(
                self._session_request,
                self._send_event,
                self._credentials,
                self.close,
                self._ping_client,
            )
        return await self._registry.open(
            self._send_event,
            self._id,
            self._credentials,
            self.close,
            self._session_request,
        )

    async def _ping_client(self) -> bool:
        return await self._socket.ping(self._limits.liveness_timeout_s)

    async def _cancel_active_responses(self, session: Session, reading: asyncio.Task[None]) -> None:
        await asyncio.gather(reading, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await session.cancel_responses()

    async def _release_session(self, session: Session) -> None:
        if self._is_closed_by_client or self._ends_session:
            await self._registry.close(session)
        else:
            await self._registry.park(session, self.close)
        if self._is_closed_by_client:
            self._outbox.put(
                self._encoder.encode_session_closed(
                    session.make_unlogged_event_id(), "client_request"
                )
            )

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal and close a connection that has no session."""
        last_event_id = (
            self._session_request.last_event_id
            if isinstance(self._session_request, ResumeRequest)
            else None
        )
        metrics.refusals.labels(refusal.code).inc()
        current_request().error_code = refusal.code
        if isinstance(self._session_request, ResumeRequest):
            metrics.resumes.labels(refusal.code).inc()
        event = self._encoder.encode_refusal(refusal, None, make_unlogged_event_id(last_event_id))
        try:
            await self._socket.send(encode_frame(event).decode())
        except SocketClosed:
            return
        may_retry = refusal.kind == "server_error" or refusal.retry_after_s is not None
        code = CloseCode.TRY_AGAIN_LATER if may_retry else CloseCode.POLICY_VIOLATION
        await self._socket.close(code, refusal.message[:120])

    def close(self, code: CloseCode, reason: str) -> None:
        """Close the connection. The first code and reason that are given count."""
        self._ends_session = self._ends_session or code is CloseCode.CLOSED_BY_OPERATOR
        if not self._ending.done():
            self._ending.set_result((code, reason))

    def cancel_responses(self) -> None:
        """Cancel the active responses when the connection ends. No effect if it ends already: the
        session may have another connection."""
        self._cancels_responses = not self._ending.done()

    async def _wait_for_end(
        self, reading: asyncio.Task[None], sending: asyncio.Task[None], session: Session
    ) -> tuple[CloseCode, str] | None:
        """Wait for the end of the connection. Returns close code and reason, or None if the client
        has disconnected."""
        lifetime_s = self._limits.connection_lifetime_s
        tasks = (sending, reading)
        await asyncio.wait(
            (self._ending, *tasks), timeout=lifetime_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self._ending.done():
            return self._ending.result()
        for task in tasks:
            if task.done():
                return self._close_reason(task)
        message = f"The session has reached its maximum duration of {lifetime_s / 60:,.0f} minutes."
        expired = Refusal(message, code="session_expired")
        self._put_refusal(expired, session)
        self._ends_session = True
        return CloseCode.NORMAL_CLOSURE, "the session has reached its maximum duration"

    def _close_reason(self, task: asyncio.Task[None]) -> tuple[CloseCode, str] | None:
        error = task.exception()
        match error:
            case SocketClosed():
                return None
            case ConnectionCloseError(code=code, reason=reason):
                return CloseCode(code), reason
            case _:
                log.error("connection %s failed", self._id, exc_info=error)
                return CloseCode.INTERNAL_ERROR, "a fault of the server"

    def _on_full_outbox(self) -> None:
        if self._session is not None and (self._pausing is None or self._pausing.done()):
            self._pausing = asyncio.create_task(self._pause_until_room(self._session))

    async def _pause_until_room(self, session: Session) -> None:
        """Pause the responses of the session until the client has read enough."""
        try:
            await session.pause_generation()
            await self._outbox.wait_for_room()
        finally:
            await session.resume_generation()

    def _send_event(self, emitted: EmittedEvent) -> None:
        events = self._encoder.encode(emitted.event, emitted.event_id.encode)
        if unseen := events[emitted.seen_parts :] if emitted.seen_parts else events:
            self._outbox.put(*unseen)

    async def _read(self, session: Session) -> None:
        while True:
            # No local variable: it would keep the last frame in memory while the client is idle.
            await self._handle_frame(await self._socket.recv(), session)

    async def _handle_frame(self, frame: str | bytes, session: Session) -> None:
        if isinstance(frame, bytes):
            raise ConnectionCloseError(
                CloseCode.UNSUPPORTED_DATA, "binary frames are not used by this protocol"
            )
        event_id: str | None = None
        try:
            self._admit(frame)
            self._check_size(frame)
            event = self._dialect.decode(frame)
            event_id = event.event_id
            self._bad_frames = 0
            command = decode_command(event, session.settings, self._registry.settings, generate_id)
            if not isinstance(command, INTERRUPTIONS):
                await self._outbox.wait_for_room()
            match command:
                case CloseRequest():
                    self._is_closed_by_client = True
                    self.close(CloseCode.NORMAL_CLOSURE, "the client has closed the session")
                case IgnoredAudioEvent(kind="clear"):
                    self._outbox.put(
                        self._encoder.encode_audio_cleared(session.make_unlogged_event_id())
                    )
                case IgnoredAudioEvent(kind="append") if not session.has_refused_audio:
                    session.has_refused_audio = True
                    raise audio_not_supported()
                case IgnoredAudioEvent():
                    pass
                case _:
                    if self._dialect.is_beta and isinstance(command, CreateSessionResponse):
                        # Clients of the beta continue as soon as an item is complete, a function
                        # call above all: before the response that contains it has ended.
                        await session.wait_for_ending_response()
                    await session.execute(command, _idempotent_request_of(event))
                    self._socket.account.credit()
        except BadFrame as refusal:
            await self._answer_refusal(refusal, session, event_id)
            self._count_bad_frame(refusal)
        except Refusal as refusal:
            await self._answer_refusal(refusal, session, event_id)
        except Exception:
            log.exception("session %s: a command failed", self._id)
            await self._answer_refusal(internal_error(), session, event_id)

    async def _answer_refusal(
        self, refusal: Refusal, session: Session, event_id: str | None
    ) -> None:
        """Send a refusal, and wait until the client has read enough: refusals are the answers that
        a client can cause without limit."""
        self._put_refusal(refusal, session, event_id)
        await self._outbox.wait_for_room()

    def _put_refusal(self, refusal: Refusal, session: Session, event_id: str | None = None) -> None:
        metrics.refusals.labels(refusal.code).inc()
        self._outbox.put(
            self._encoder.encode_refusal(refusal, event_id, session.make_unlogged_event_id())
        )

    def _admit(self, frame: str) -> None:
        """Charge a frame to the tenant. Raises Refusal."""
        try:
            self._ledger.admit_operation()
        except Refusal as refusal:
            refusal.event_id = extract_event_id(frame)
            raise

    def _check_size(self, frame: str) -> None:
        limit = self._limits.frame_bytes_max
        size = len(frame)
        if size * 4 > limit:
            size = len(frame.encode(errors="replace"))
        if size > limit:
            raise Refusal(
                f"The frame is {size:,} bytes; the limit is {limit:,} bytes.",
                code="frame_too_large",
                event_id=extract_event_id(frame),
            )

    def _count_bad_frame(self, refusal: BadFrame) -> None:
        if refusal.code != "invalid_json":
            return
        self._bad_frames += 1
        if self._bad_frames >= self._limits.bad_frames_max:
            raise ConnectionCloseError(
                CloseCode.INVALID_DATA, f"{self._bad_frames} frames in a row were not JSON"
            )


def _idempotent_request_of(event: ClientEvent) -> IdempotentRequest | None:
    if event.event_id is None:
        return None
    return IdempotentRequest.of(event.event_id, msgspec.json.encode(event))

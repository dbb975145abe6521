"""A connection of the Responses API: requests from the socket to stream queues, events back.

    socket ──recv──▶ decode ──▶ stream queue ──▶ decode_command ──▶ responses.create
    socket ◀──send── encode ◀────────────────────────────────────── event stream

The server sends nothing before a request. Unsent events stay in the event streams of their
responses, so a client that reads slowly needs no send queue; one that does not read at all is
disconnected.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from continuo.realtime import metrics
from continuo.realtime.errors import BadFrame, ConnectionCloseError, Refusal, internal_error
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.complexity_limits import check_frame_complexity
from continuo.realtime.protocol.responses_api import (
    Encoder,
    ResponseCancel,
    ResponseCreate,
    ResponseSteer,
    ServerEvent,
    decode_command,
    decode_frame,
    encode_error,
    encode_frame,
    extract_stream_id,
)
from continuo.realtime.responses.run import Requester, ResponseRun
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.transport.pacing import run_paced
from continuo.realtime.transport.socket import Socket, SocketClosed
from continuo.realtime.transport.steering import Steering
from continuo.realtime.transport.stream_queues import StreamQueues

log = logging.getLogger(__name__)

ResolveModel = Callable[[str | None], str]
"""Resolve a requested model to the served name. Raises Refusal for a model that is not served."""


class EventSender:
    """Sends events with a timeout."""

    def __init__(self, socket: Socket, send_s_max: float) -> None:
        self._socket = socket
        self._send_s_max = send_s_max

    async def send(self, event: ServerEvent) -> None:
        """Send an event. Raises SocketClosed, and ConnectionCloseError if the client does not
        read."""
        try:
            async with asyncio.timeout(self._send_s_max):
                await self._socket.send(encode_frame(event).decode())
        except TimeoutError:
            raise ConnectionCloseError(
                CloseCode.TRY_AGAIN_LATER, "the client reads too slowly"
            ) from None


class ResponsesConnection:
    """A connection and its active responses."""

    def __init__(
        self, socket: Socket, responses: ResponseService, tenant: str, resolve_model: ResolveModel
    ) -> None:
        self._socket = socket
        self._responses = responses
        self._limits = responses.limits
        self._id = generate_id("conn")
        self._requester = Requester(tenant, self._id)
        self._ledger = responses.ledger_of(tenant)
        self._resolve_model = resolve_model
        self._queues = StreamQueues(self._limits, self._ledger)
        self._runs: dict[str, ResponseRun] = {}
        self._send = EventSender(socket, self._limits.send_timeout_s).send
        self._steering = Steering(responses, self._requester, self._runs, self._send)
        self._bad_frames = 0
        loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[tuple[CloseCode, str] | None] = loop.create_future()

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal and close a connection that is not served."""
        with contextlib.suppress(SocketClosed, ConnectionCloseError):
            await self._send(encode_error(refusal))
        await self._socket.close(CloseCode.TRY_AGAIN_LATER, refusal.message[:120])

    async def run(self) -> None:
        """Serve the connection until it is closed."""
        with self._responses.connected(self._id):
            await self._serve()

    async def _serve(self) -> None:
        reading = asyncio.create_task(
            self._socket.account.timed(self._read), name=f"read {self._id}"
        )
        reading.add_done_callback(self._on_reading_ended)
        end: tuple[CloseCode, str] | None = (CloseCode.SERVICE_RESTART, "the server stops")
        try:
            end = await self._wait_for_end()
        finally:
            reading.cancel()
            await self._queues.close()
            await asyncio.gather(reading, return_exceptions=True)
            await self._socket.close(*(end or (CloseCode.NORMAL_CLOSURE, "")))

    # ------------------------------------------------------------ close

    async def _wait_for_end(self) -> tuple[CloseCode, str] | None:
        """Wait for the end of the connection. Returns close code and reason, or None if the client
        has disconnected."""
        lifetime_s = self._limits.connection_lifetime_s
        try:
            async with asyncio.timeout(lifetime_s):
                return await self._ending
        except TimeoutError:
            pass
        refusal = Refusal(
            f"The connection has reached its maximum duration of {lifetime_s / 60:,.0f} minutes.",
            code="websocket_connection_limit_reached",
        )
        with contextlib.suppress(SocketClosed, ConnectionCloseError):
            await self._send_refusal(refusal)
        return CloseCode.NORMAL_CLOSURE, "the connection has reached its maximum duration"

    def close(self, code: CloseCode, reason: str) -> None:
        """Close the connection. The first code and reason that are given count."""
        self._request_close((code, reason))

    def cancel_responses(self) -> None:
        """Cancel the active responses, stored ones too."""
        for run in self._runs.values():
            run.is_steered = False
            self._responses.start_cancel(run)

    def _request_close(self, end: tuple[CloseCode, str] | None) -> None:
        if not self._ending.done():
            self._ending.set_result(end)

    def _on_reading_ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            error = reading.exception()
            assert error is not None, "reading ends only by an exception"
            self._on_error(error)

    def _on_error(self, error: BaseException) -> None:
        match error:
            case SocketClosed():
                self._request_close(None)
            case ConnectionCloseError(code=code, reason=reason):
                self._request_close((CloseCode(code), reason))
            case _:
                log.error("connection %s failed", self._id, exc_info=error)
                self._request_close((CloseCode.INTERNAL_ERROR, "a fault of the server"))

    # ------------------------------------------------------------ frames

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv()
            if isinstance(frame, bytes):
                raise ConnectionCloseError(
                    CloseCode.UNSUPPORTED_DATA, "binary frames are not used by this protocol"
                )
            try:
                self._ledger.admit_operation()
                await self._handle_frame(frame)
                self._socket.account.credit()
            except Refusal as refusal:
                await self._send_refusal(refusal, extract_stream_id(frame))
                self._count_bad_frame(refusal)
            del frame  # else the last frame stays in memory while the client is idle

    async def _handle_frame(self, frame: str) -> None:
        self._check_size(frame)
        await run_paced(check_frame_complexity(frame))
        event = decode_frame(frame)
        self._bad_frames = 0
        match event:
            case ResponseCreate():
                self._queues.put(event.stream_id, partial(self._run_to_end, event), len(frame))
            case ResponseCancel():
                await self._cancel(event)
            case ResponseSteer():
                await self._steering.handle(event)

    async def _send_refusal(self, refusal: Refusal, stream_id: str | None = None) -> None:
        metrics.refusals.labels(refusal.code).inc()
        await self._send(encode_error(refusal, stream_id))

    def _check_size(self, frame: str) -> None:
        limit = self._limits.response_frame_bytes_max
        size = len(frame) if len(frame) * 4 <= limit else len(frame.encode(errors="replace"))
        if size > 2 * limit:
            raise ConnectionCloseError(CloseCode.MESSAGE_TOO_BIG, f"a frame of {size:,} bytes")
        if size > limit:
            raise Refusal(
                f"The frame is {size:,} bytes; the limit is {limit:,} bytes.",
                code="frame_too_large",
            )

    def _count_bad_frame(self, refusal: Refusal) -> None:
        if not isinstance(refusal, BadFrame) or refusal.code != "invalid_json":
            return
        self._bad_frames += 1
        if self._bad_frames >= self._limits.bad_frames_max:
            raise ConnectionCloseError(
                CloseCode.INVALID_DATA, f"{self._bad_frames} frames in a row were not JSON"
            )

    async def _cancel(self, event: ResponseCancel) -> None:
        running = list(self._runs.values())
        if event.response_id is not None:
            running = [run for run in running if run.id == event.response_id]
        if len(running) != 1:
            subject = "no response" if event.response_id is None else f"'{event.response_id}'"
            raise Refusal(
                f"Cancellation failed: {subject} is active."
                if not running
                else "Cancellation failed: several responses are active; name one.",
                code="response_not_active",
                param="response_id",
            )
        running[0].is_steered = False
        await running[0].cancel()

    # ------------------------------------------------------------ responses

    async def _run_to_end(self, create: ResponseCreate) -> None:
        """Serve a request until its response has ended; an exception closes the connection."""
        try:
            await self._respond(create)
        except Exception as error:  # noqa: BLE001 - closes the connection, which reports it
            self._on_error(error)

    async def _respond(self, create: ResponseCreate) -> None:
        """Create a response and send its events; if it is steered, also those of its successors."""
        try:
            model = self._resolve_model(create.model)
            create = msgspec.structs.replace(create, background=None)
            command = decode_command(create, self._responses.settings, model, generate_id)
            steered_input = self._steering.pending_input(command.previous_response_id)
            command = msgspec.structs.replace(command, input=steered_input + command.input)
            run = await self._responses.create(command, self._requester)
        except Refusal as refusal:
            await self._send_refusal(refusal, create.stream_id)
            return
        except Exception:
            log.exception("connection %s: a request failed", self._id)
            await self._send_refusal(internal_error(), create.stream_id)
            return
        self._steering.clear(command.previous_response_id)
        next_run: ResponseRun | None = run
        while next_run is not None:
            next_run = await self._follow(next_run, Encoder(create.stream_id))

    async def _follow(self, run: ResponseRun, encoder: Encoder) -> ResponseRun | None:
        """Send the events of a response until it has ended. Returns its successor if steering
        started one, else None."""
        self._runs[run.id] = run
        try:
            async with contextlib.aclosing(run.event_stream.follow()) as events:
                async for event in events:
                    for server_event in encoder.encode(event):
                        await self._send(server_event)
        finally:
            del self._runs[run.id]
        return await self._steering.start_successor(run, encoder)

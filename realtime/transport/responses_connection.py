"""One connection of the Responses API: asks from the socket into their lanes, events back.

    socket ──recv──▶ decode ──▶ lane ──▶ hear ──▶ responses.begin
    socket ◀──send── say ◀────────────────────────── recording

It says nothing until it is asked. Events wait in the recordings of their responses, so nothing has
to be queued for a slow reader; one who does not read at all is hung up on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from continuo.realtime.errors import BadFrame, Hangup, Refusal, bug
from continuo.realtime.ids import fresh
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.complexity_limits import weigh
from continuo.realtime.protocol.responses_api import (
    Cancel,
    Create,
    ServerEvent,
    Steer,
    Voice,
    decode,
    encode,
    error_out,
    hear,
    stream_id_of,
)
from continuo.realtime.responses.run import Making, Visitor
from continuo.realtime.responses.service import Responses
from continuo.realtime.transport.pacing import paced
from continuo.realtime.transport.socket import Socket, SocketClosed
from continuo.realtime.transport.steering import Steering
from continuo.realtime.transport.stream_queues import Lanes

log = logging.getLogger(__name__)

CheckModel = Callable[[str | None], str]
"""The name to answer under. Raises Refusal for a model that is not served."""


class Sender:
    def __init__(self, socket: Socket, send_s_max: float) -> None:
        self._socket = socket
        self._send_s_max = send_s_max

    async def send(self, event: ServerEvent) -> None:
        """Raises SocketClosed, or Hangup over a reader that does not read."""
        try:
            async with asyncio.timeout(self._send_s_max):
                await self._socket.send(encode(event).decode())
        except TimeoutError:
            raise Hangup(CloseCode.TRY_LATER, "the client reads too slowly") from None


class ResponsesConnection:
    def __init__(
        self, socket: Socket, responses: Responses, tenant: str, check_model: CheckModel
    ) -> None:
        self._socket = socket
        self._responses = responses
        self._limits = responses.limits
        self._id = responses.enter()
        self._visitor = Visitor(tenant, self._id)
        self._check_model = check_model
        self._lanes = Lanes(self._limits)
        self._running: dict[str, Making] = {}
        self._send = Sender(socket, self._limits.send_s_max).send
        self._steering = Steering(responses, self._visitor, self._running, self._send)
        self._bad_frames = 0
        loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[tuple[CloseCode, str] | None] = loop.create_future()

    async def run(self) -> None:
        """To the close."""
        reading = asyncio.create_task(self._read(), name=f"read {self._id}")
        reading.add_done_callback(self._reading_ended)
        end: tuple[CloseCode, str] | None = (CloseCode.RESTART, "the server stops")
        try:
            end = await self._end()
        finally:
            reading.cancel()
            await self._lanes.close()
            self._responses.leave(self._id)
            await asyncio.gather(reading, return_exceptions=True)
            await self._socket.close(*(end or (CloseCode.NORMAL, "")))

    # ------------------------------------------------------------ how it ends

    async def _end(self) -> tuple[CloseCode, str] | None:
        """None: the other side is gone."""
        lifetime_s = self._limits.session_s_max
        try:
            async with asyncio.timeout(lifetime_s):
                return await self._ending
        except TimeoutError:
            pass
        refusal = Refusal(
            f"The connection has reached its maximum duration of {lifetime_s / 60:,.0f} minutes.",
            code="websocket_connection_limit_reached",
        )
        with contextlib.suppress(SocketClosed, Hangup):
            await self._send(error_out(refusal))
        return CloseCode.NORMAL, "the connection has reached its maximum duration"

    def _hang_up(self, end: tuple[CloseCode, str] | None) -> None:
        if not self._ending.done():
            self._ending.set_result(end)

    def _reading_ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled():
            error = reading.exception()
            assert error is not None, "one reads until something happens"
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        match error:
            case SocketClosed():
                self._hang_up(None)
            case Hangup(code=code, reason=reason):
                self._hang_up((CloseCode(code), reason))
            case _:
                log.error("connection %s broke", self._id, exc_info=error)
                self._hang_up((CloseCode.SERVER_BUG, "a fault of the server"))

    # ------------------------------------------------------------ what comes in

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv()
            if isinstance(frame, bytes):
                raise Hangup(CloseCode.BINARY, "binary frames are not used by this protocol")
            try:
                await self._take(frame)
            except Refusal as refusal:
                await self._send(error_out(refusal, stream_id_of(frame)))
                self._count_bad_frame(refusal)
            del frame  # else the last one stays for as long as the client is idle

    async def _take(self, frame: str) -> None:
        self._check_size(frame)
        await paced(weigh(frame, "frame"))
        event = decode(frame)
        self._bad_frames = 0
        match event:
            case Create():
                self._lanes.put(event.stream_id, partial(self._serve, event), len(frame))
            case Cancel():
                await self._cancel(event)
            case Steer():
                await self._steering.take(event)

    def _check_size(self, frame: str) -> None:
        limit = self._limits.response_frame_bytes_max
        size = len(frame) if len(frame) * 4 <= limit else len(frame.encode(errors="replace"))
        if size > 2 * limit:
            raise Hangup(CloseCode.TOO_BIG, f"a frame of {size:,} bytes")
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
            raise Hangup(CloseCode.NOT_JSON, f"{self._bad_frames} frames in a row were not JSON")

    async def _cancel(self, event: Cancel) -> None:
        running = list(self._running.values())
        if event.response_id is not None:
            running = [making for making in running if making.id == event.response_id]
        if len(running) != 1:
            what = "no response" if event.response_id is None else f"'{event.response_id}'"
            raise Refusal(
                f"Cancellation failed: {what} is active."
                if not running
                else "Cancellation failed: several responses are active; name one.",
                code="response_not_active",
                param="response_id",
            )
        running[0].steered = False
        await running[0].cancel()

    # ------------------------------------------------------------ a response

    async def _serve(self, create: Create) -> None:
        """As `_answer`; what that raises ends the connection."""
        try:
            await self._answer(create)
        except Exception as error:
            self._broke(error)

    async def _answer(self, create: Create) -> None:
        """To its end, and that of those that follow from what was said to it meanwhile."""
        try:
            model = self._check_model(create.model)
            create = msgspec.structs.replace(create, background=None)
            ask = hear(create, self._responses.settings, model, fresh)
            waiting = self._steering.said_to(ask.previous)
            ask = msgspec.structs.replace(ask, input=waiting + ask.input)
            making = await self._responses.begin(ask, self._visitor)
        except Refusal as refusal:
            await self._send(error_out(refusal, create.stream_id))
            return
        except Exception:
            log.exception("connection %s", self._id)
            await self._send(error_out(bug(), create.stream_id))
            return
        self._steering.used(ask.previous)
        following: Making | None = making
        while following is not None:
            following = await self._follow(following, Voice(create.stream_id))

    async def _follow(self, making: Making, voice: Voice) -> Making | None:
        """To its end. Gives its successor, if it was steered."""
        self._running[making.id] = making
        try:
            async with contextlib.aclosing(making.recording.follow()) as recording:
                async for told in recording:
                    for event in voice.say(told):
                        await self._send(event)
        finally:
            del self._running[making.id]
        return await self._steering.follow_up(making, voice)

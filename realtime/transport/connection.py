"""One connection: frames from the socket to the session, what the session says to the socket.

    socket ──recv──▶ decode ──▶ hear ──▶ session.do
    socket ◀──send── outbox ◀── say ◀─── tell

A bad frame is answered and forgotten; too many in a row end the connection. When the connection
ends its session waits for the next one, unless it was ended.
"""

import asyncio
import contextlib
import logging

import msgspec

from continuo.realtime.errors import BadFrame, Hangup, Refusal, bug
from continuo.realtime.event_log.event_id import aside_of
from continuo.realtime.event_log.event_log import Line
from continuo.realtime.ids import fresh
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.realtime_api import (
    JSON,
    ClientEvent,
    Codec,
    Farewell,
    NoAudio,
    Voice,
    hear,
)
from continuo.realtime.registry.access import Fork, Guest, Return
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.session import Session
from continuo.realtime.store import Once
from continuo.realtime.transport.outbox import Outbox
from continuo.realtime.transport.socket import Socket, SocketClosed

log = logging.getLogger(__name__)

_FAREWELL_S = 2.0
"""How long we try to deliver what was said before we close."""
_OTHER_KIND = {
    False: "binary frames were not agreed: offer the subprotocol realtime.msgpack",
    True: "text frames are not used with the subprotocol realtime.msgpack",
}
"""By whether the agreed frames are binary."""


class Connection:
    def __init__(
        self,
        socket: Socket,
        registry: Registry,
        limits: Limits,
        model: str,
        guest: Guest | None = None,
        wish: Fork | Return | None = None,
        codec: Codec = JSON,
    ) -> None:
        """`wish`: to begin as another session was, or to go on with one."""
        self._socket = socket
        self._registry = registry
        self._limits = limits
        self._codec = codec
        self._outbox = Outbox(socket, limits, codec)
        self._id = wish.session_id if isinstance(wish, Return) else fresh("sess")
        self._guest = guest or Guest()
        allowance = registry.rates.of(self._guest.tenant)
        self._voice = Voice(self._id, model, allowance.levels)
        self._wish = wish
        self._bad_frames = 0
        loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[tuple[CloseCode, str]] = loop.create_future()
        self._farewell = False
        """Whether the client has ended its session."""
        self._over = False
        """Whether the session ends with the connection."""

    async def run(self) -> None:
        """From session.created, or what was missed, to the close."""
        try:
            session = await self._enter()
        except Refusal as refusal:
            await self.refuse(refusal)
            return
        reading = asyncio.create_task(self._read(session), name=f"read {self._id}")
        sending = asyncio.create_task(self._outbox.run(), name=f"send {self._id}")
        end: tuple[CloseCode, str] | None = (CloseCode.RESTART, "the server stops")
        try:
            end = await self._end(reading, sending, session)
        finally:
            reading.cancel()
            await self._leave(session)
            if end is not None and not sending.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._outbox.sent(), _FAREWELL_S)
            sending.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            await self._socket.close(*(end or (CloseCode.NORMAL, "")))

    async def _enter(self) -> Session:
        """Raises Refusal."""
        if isinstance(self._wish, Return):
            return await self._registry.resume(
                self._wish, self._listen, self._guest, self._hang_up, self._there
            )
        return await self._registry.open(
            self._listen, self._id, self._guest, self._hang_up, self._wish
        )

    async def _there(self) -> bool:
        return await self._socket.there(self._limits.there_s_max)

    async def _leave(self, session: Session) -> None:
        if self._farewell or self._over:
            await self._registry.close(session)
        else:
            await self._registry.park(session, self._hang_up)
        if self._farewell:
            self._outbox.put(self._voice.closed(session.aside(), "client_request"))

    async def refuse(self, refusal: Refusal) -> None:
        """Says why, and closes: for a connection that never gets a session."""
        seen = self._wish.last_event_id if isinstance(self._wish, Return) else None
        event = self._voice.refuse(refusal, None, aside_of(seen))
        try:
            frame = self._codec.encode(event)
            await self._socket.send(frame if self._codec.binary else frame.decode())
        except SocketClosed:
            return
        ours = refusal.kind == "server_error"
        code = CloseCode.TRY_LATER if ours else CloseCode.POLICY
        await self._socket.close(code, refusal.message[:120])

    def _hang_up(self, code: CloseCode, reason: str) -> None:
        self._over = self._over or code is CloseCode.ENDED_BY_OPERATOR
        if not self._ending.done():
            self._ending.set_result((code, reason))

    async def _end(
        self, reading: asyncio.Task[None], sending: asyncio.Task[None], session: Session
    ) -> tuple[CloseCode, str] | None:
        """Waits for the end of the connection. None: the other side is gone."""
        lifetime_s = self._limits.session_s_max
        tasks = (sending, reading)
        await asyncio.wait(
            (self._ending, *tasks), timeout=lifetime_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self._ending.done():
            return self._ending.result()
        for task in tasks:
            if task.done():
                return self._why(task)
        words = f"The session has reached its maximum duration of {lifetime_s / 60:,.0f} minutes."
        expired = Refusal(words, code="session_expired")
        self._outbox.put(self._voice.refuse(expired, None, session.aside()))
        self._over = True
        return CloseCode.NORMAL, "the session has reached its maximum duration"

    def _why(self, task: asyncio.Task[None]) -> tuple[CloseCode, str] | None:
        error = task.exception()
        match error:
            case SocketClosed():
                return None
            case Hangup(code=code, reason=reason):
                return CloseCode(code), reason
            case _:
                log.error("connection %s broke", self._id, exc_info=error)
                return CloseCode.SERVER_BUG, "a fault of the server"

    def _listen(self, line: Line) -> None:
        if events := self._voice.say(line.tell, line.at.event_id)[line.skip :]:
            self._outbox.put(*events)

    async def _read(self, session: Session) -> None:
        while True:
            await self._outbox.room()
            # No name here: it would keep the last frame for as long as the client is idle.
            await self._take(await self._socket.recv(), session)

    async def _take(self, frame: str | bytes, session: Session) -> None:
        if isinstance(frame, bytes) is not self._codec.binary:
            raise Hangup(CloseCode.BINARY, _OTHER_KIND[self._codec.binary])
        event_id: str | None = None
        try:
            self._check_size(frame)
            event = self._codec.decode(frame)
            event_id = event.event_id
            self._bad_frames = 0
            ask = hear(event, session.settings, self._registry.settings, fresh)
            match ask:
                case Farewell():
                    self._farewell = True
                    self._hang_up(CloseCode.NORMAL, "the client has ended the session")
                case NoAudio(cleared=cleared):
                    if cleared:
                        self._outbox.put(self._voice.audio_cleared(session.aside()))
                case _:
                    await session.do(ask, _once(event))
        except BadFrame as refusal:
            self._outbox.put(self._voice.refuse(refusal, event_id, session.aside()))
            self._count_bad_frame(refusal)
        except Refusal as refusal:
            self._outbox.put(self._voice.refuse(refusal, event_id, session.aside()))
        except Exception:
            log.exception("session %s", self._id)
            self._outbox.put(self._voice.refuse(bug(), event_id, session.aside()))

    def _check_size(self, frame: str | bytes) -> None:
        limit = self._limits.frame_bytes_max
        size = len(frame)
        if isinstance(frame, str) and size * 4 > limit:
            size = len(frame.encode(errors="replace"))
        if size > limit:
            raise Refusal(
                f"The frame is {size:,} bytes; the limit is {limit:,} bytes.",
                code="frame_too_large",
                event_id=self._codec.event_id_of(frame),
            )

    def _count_bad_frame(self, refusal: BadFrame) -> None:
        if refusal.code != self._codec.unreadable:
            return
        self._bad_frames += 1
        if self._bad_frames >= self._limits.bad_frames_max:
            raise Hangup(
                CloseCode.NOT_JSON,
                f"{self._bad_frames} frames in a row were not {self._codec.name}",
            )


def _once(event: ClientEvent) -> Once | None:
    if event.event_id is None:
        return None
    return Once(event.event_id, msgspec.json.encode(event))

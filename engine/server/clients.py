"""Fronts: which front holds each session. Between the links and the loop, which know nothing of it.

    front ──commands──▶ held by it? renumbered ──▶ loop
    front ◀──events──── to who asked; to who holds the session ◀── loop

A session is held by one front, by a fence that only grows. Who attaches it with a higher one takes
it over; a front with a lower one can neither change it nor hear of it, but ask how it is. When a
front is lost, its turns go on for a grace and are then paused; later its sessions are closed. Until
then all that their turns have said is in their logs, for whoever attaches them.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, assert_never

import msgspec

from continuo.engine.config import EngineConfig
from continuo.engine.errors import (
    CommandFailed,
    EngineError,
    StaleEngineFence,
    UnknownEngineSession,
)
from continuo.engine.wire.messages import (
    AttachSession,
    CloseSession,
    CommandDone,
    CommandRefused,
    DrainEngine,
    EngineCommand,
    EngineEvent,
    EngineLoad,
    EngineReady,
    ForkSession,
    GetModelFiles,
    GetSessionInfo,
    GetStats,
    ListSessions,
    LocateSession,
    LoopCommand,
    ModelLoadFailed,
    ModelLoading,
    OpenSession,
    PauseTurn,
    Ping,
    Pong,
    SessionCommand,
    SessionExpired,
    SessionSuperseded,
    TurnEnded,
    TurnTokens,
)

log = logging.getLogger(__name__)

SendToClient = Callable[[list[EngineEvent]], None]
NO_REPLY = 0
MODEL_FILE_SUFFIXES = (".json", ".jinja", ".txt", ".model")
MODEL_FILE_BYTES_MAX = 64 << 20
"""A larger one is none that is read for its words."""


class ClientState:
    """One link, as the engine sees it."""

    def __init__(self, send: SendToClient, disconnect: Callable[[], None] | None) -> None:
        self.send = send
        self.disconnect = disconnect
        """None: whoever is at the other end of it is there as long as the link is."""
        self.name = ""
        self.last_received_s = 0.0
        """When it last said something."""


class Attachment:
    """Who may change a session and hears of it. `front` is None when its front was lost."""

    __slots__ = ("client", "detach_count", "fence")

    def __init__(self, client: ClientState, fence: int) -> None:
        self.client: ClientState | None = client
        self.fence = fence
        self.detach_count = 0
        """How often it was left without a front."""


class DetachedSession(NamedTuple):
    """A session and the loss of its front by which it became one."""

    session: str
    attachment: Attachment
    detach_count: int


class InFlightCommand(NamedTuple):
    """A command on its way through the loop: who waits for its answer, under which number."""

    client: ClientState
    command: LoopCommand
    created_session: str | None
    """The session that is there because of it, and is not if it is refused."""


class Clients:
    def __init__(
        self,
        enqueue: Callable[[list[LoopCommand]], None],
        measure_load: Callable[[], EngineLoad],
        config: EngineConfig,
        clock: Callable[[], float],
        folder: str,
    ) -> None:
        """`folder`: of the model."""
        self._folder = folder
        self._enqueue = enqueue
        self._measure_load = measure_load
        self._config = config
        self._clock = clock
        self._attachments: dict[str, Attachment] = {}
        self._closing: dict[str, Attachment] = {}
        """Those on their way out: the name is free, the end of their turn is still to be heard."""
        self._commands_in_flight: dict[int, InFlightCommand] = {}
        self._last_number = NO_REPLY
        self.connected: set[ClientState] = set()

    # ---- fronts come and go ---------------------------------------------------------------

    def add(self, send: SendToClient, disconnect: Callable[[], None] | None = None) -> ClientState:
        front = ClientState(send, disconnect)
        front.last_received_s = self._clock()
        self.connected.add(front)
        return front

    def remove(self, client: ClientState) -> None:
        """Its turns go on for `detach_grace_s`, its sessions stay for `detach_keep_s`."""
        self.connected.discard(client)
        orphans: list[DetachedSession] = []
        for name, hold in self._attachments.items():
            if hold.client is client:
                hold.client, hold.detach_count = None, hold.detach_count + 1
                orphans.append(DetachedSession(name, hold, hold.detach_count))
        if orphans:
            here, config = asyncio.get_running_loop(), self._config
            here.call_later(config.detach_grace_s, self._pause_detached, orphans)
            here.call_later(config.detach_keep_s, self._close_detached, orphans)

    def _identify(self, client: ClientState, name: str) -> None:
        """Who is here by a new link is so by that alone, though the loss of the one before has not
        been heard of yet."""
        if not name or client.name == name:
            return
        client.name = name
        for before in [
            other for other in self.connected if other.name == name and other is not client
        ]:
            self.remove(before)
            if before.disconnect is not None:
                before.disconnect()

    def disconnect_silent(self, timeout_s: float) -> None:
        """Hangs up on fronts elsewhere that have not said anything for so long."""
        since_s = self._clock() - timeout_s
        for front in list(self.connected):
            if front.disconnect is not None and front.last_received_s < since_s:
                front.disconnect()

    # ---- commands in ----------------------------------------------------------------------

    def receive(self, client: ClientState, commands: list[EngineCommand]) -> None:
        """What a front says. Refused is what it may not; the rest goes to the loop, in order."""
        client.last_received_s = self._clock()
        passed: list[LoopCommand] = []
        for command in commands:
            try:
                self._handle(client, command, passed)
            except EngineError as error:
                client.send([CommandRefused(command.n, error.code, error.message, error.field)])
            except Exception as error:
                name = type(command).__name__
                log.exception("%s failed by a fault of the engine", name)
                message = f"the engine failed at {name}: {type(error).__name__}: {error}"
                client.send([CommandRefused(command.n, CommandFailed.code, message)])
        if passed:
            self._enqueue(passed)

    def _handle(
        self, client: ClientState, command: EngineCommand, accepted: list[LoopCommand]
    ) -> None:
        made = None
        match command:
            case Ping():
                self._identify(client, command.front)
                client.send([Pong(self._measure_load())])
                return
            case LocateSession():
                if command.session not in self._attachments:
                    raise UnknownEngineSession(
                        f"there is no session {command.session}", field="session"
                    )
                client.send([CommandDone(command.n)])
                return
            case GetModelFiles():
                client.send([CommandDone(command.n, files=_read_model_files(self._folder))])
                return
            case ListSessions() | GetStats() | DrainEngine() | GetSessionInfo():
                pass
            case OpenSession():
                command, made = self._prepare_open(client, command)
            case AttachSession():
                made = self._attach(client, command)
            case ForkSession():
                self._check_attached(client, command)
                made = self._prepare_fork(client, command, accepted)
            case CloseSession():
                if not self._is_detached(command):
                    self._check_attached(client, command)
                if hold := self._attachments.pop(command.session, None):
                    self._closing[command.session] = hold
            case _:
                self._check_attached(client, command)
        accepted.append(self._renumber(client, command, made))

    def _prepare_open(
        self, client: ClientState, command: OpenSession
    ) -> tuple[OpenSession | AttachSession, str | None]:
        """A session that is here under a lower fence is begun anew."""
        hold = self._attachments.get(command.session)
        if hold is None or (hold.client is client and hold.fence == command.fence):
            made = self._attach(client, command)
            return command, made
        attach = AttachSession(command.n, command, [], fence=command.fence)
        return attach, self._attach(client, attach)

    def _prepare_fork(
        self, client: ClientState, command: ForkSession, accepted: list[LoopCommand]
    ) -> str | None:
        """A child left by a lost link, whose front did not hear that it was there, is made anew."""
        hold = self._attachments.get(command.child)
        if hold is not None and hold.client is None and command.child_fence >= hold.fence:
            accepted.append(CloseSession(NO_REPLY, command.child))
        elif hold is not None:
            return None
        self._attachments[command.child] = Attachment(client, command.child_fence)
        return command.child

    def _attach(self, client: ClientState, command: OpenSession | AttachSession) -> str | None:
        session, fence = command.session, command.fence
        hold = self._attachments.get(session)
        if hold is None:
            self._attachments[session] = Attachment(client, fence)
            return session
        if fence < hold.fence or (fence == hold.fence and hold.client not in (None, client)):
            raise _stale_fence(session, fence, hold)
        if hold.client is not None and hold.client is not client:
            hold.client.send([SessionSuperseded(session, fence)])
        hold.client, hold.fence = client, fence
        return None

    def _is_detached(self, command: CloseSession) -> bool:
        """Nobody holds it: who knows its fence may end it."""
        hold = self._attachments.get(command.session)
        return hold is not None and hold.client is None and command.fence >= hold.fence

    def _check_attached(self, client: ClientState, command: SessionCommand) -> None:
        """The front holds the session it speaks of. A session that is not here is refused by the
        loop; one that is another's is, for a front that has never held it, as good as not here."""
        hold = self._attachments.get(command.session)
        if hold is None:
            return
        if command.fence < hold.fence:
            raise _stale_fence(command.session, command.fence, hold)
        if hold.client is not client:
            raise UnknownEngineSession(
                f"this front does not hold session {command.session}: attach it", field="session"
            )
        hold.fence = command.fence

    def _renumber(
        self, client: ClientState, command: LoopCommand, created_session: str | None
    ) -> LoopCommand:
        """Numbers are the fronts' own, so that two of them may use the same. One with the number 0
        waits for no answer, and yet what it has made must be forgotten if it is refused."""
        self._last_number += 1
        self._commands_in_flight[self._last_number] = InFlightCommand(
            client, command, created_session
        )
        return msgspec.structs.replace(command, n=self._last_number)

    # ---- events out -----------------------------------------------------------------------

    def send_all(self, events: list[EngineEvent]) -> None:
        """To each front what concerns it, in order."""
        mail: dict[ClientState, list[EngineEvent]] = {}
        for event in events:
            front, said = self._route(event)
            if front is not None:
                mail.setdefault(front, []).append(said)
        for front, told in mail.items():
            front.send(told)

    def _route(self, event: EngineEvent) -> tuple[ClientState | None, EngineEvent]:
        match event:  # tokens, the most frequent, first
            case TurnTokens() | TurnEnded():
                hold = self._closing.get(event.session) or self._attachments.get(event.session)
                return (hold.client if hold else None), event
            case CommandDone() | CommandRefused():
                return self._route_reply(event)
            case SessionExpired():
                hold = self._attachments.pop(event.session, None)
                return (hold.client if hold else None), event
            case EngineReady() | ModelLoading() | ModelLoadFailed() | SessionSuperseded() | Pong():
                return None, event
            case _:
                assert_never(event)

    def _route_reply(
        self, event: CommandDone | CommandRefused
    ) -> tuple[ClientState | None, EngineEvent]:
        asked = self._commands_in_flight.pop(event.n, None)
        if asked is None:
            return None, event
        refused = isinstance(event, CommandRefused)
        if refused and asked.created_session is not None:
            self._attachments.pop(asked.created_session, None)
        if isinstance(asked.command, CloseSession):
            self._closing.pop(asked.command.session, None)
        front = asked.client if asked.command.n != NO_REPLY else None
        return front, msgspec.structs.replace(event, n=asked.command.n)

    # ---- sessions that nobody holds ---------------------------------------------------------

    def _pause_detached(self, detached: list[DetachedSession]) -> None:
        self._enqueue([PauseTurn(NO_REPLY, name) for name in self._filter_detached(detached)])

    def _close_detached(self, detached: list[DetachedSession]) -> None:
        closed = self._filter_detached(detached)
        for name in closed:
            del self._attachments[name]
        self._enqueue([CloseSession(NO_REPLY, name) for name in closed])

    def _filter_detached(self, detached: list[DetachedSession]) -> list[str]:
        """Those that are here, and that nobody has taken up since."""
        return [
            name
            for name, hold, loss in detached
            if hold.client is None
            and hold.detach_count == loss
            and self._attachments.get(name) is hold
        ]


def _read_model_files(folder: str) -> dict[str, bytes]:
    """All but the weights."""
    return {
        file.name: file.read_bytes()
        for file in Path(folder).iterdir()
        if file.suffix in MODEL_FILE_SUFFIXES and file.stat().st_size <= MODEL_FILE_BYTES_MAX
    }


def _stale_fence(session: str, fence: int, attachment: Attachment) -> StaleEngineFence:
    return StaleEngineFence(
        f"session {session} was taken over: its fence is {attachment.fence}, this one is {fence}",
        field="fence",
    )

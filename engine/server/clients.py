"""Clients: the gateways connected to an engine process, and the attachment of each session to one
of them. Links and loop are unaware of attachments.

    client ──commands──▶ attachment checked, renumbered ─────────────▶ loop
    client ◀──events──── replies to the sender; others by attachment ◀── loop

A session is attached to one client, under a fence (fencing token) that only grows. A client that
attaches the session with a higher fence takes it over; a client with a lower fence can neither
change the session nor receive its events, but can get its SessionInfo. When a client disconnects,
its turns continue for a grace period and are then paused; later its sessions are closed. Any client
that attaches such a session before that receives the output generated meanwhile. A session without
a fence is in no store, so that no other client can resume it: it is closed after
DISPOSABLE_GRACE_S, in which a client whose link was lost reconnects.
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
    NO_REPLY,
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
DISPOSABLE_GRACE_S = 2.0
"""How long a session without a fence is kept after its client has disconnected."""
MODEL_FILE_SUFFIXES = (".json", ".jinja", ".txt", ".model")
MODEL_FILE_BYTES_MAX = 64 << 20
"""Maximum size of a model file that is sent to clients; a larger file is neither a tokenizer nor a
configuration."""


class ClientState:
    """State of one connected client, which has one link."""

    def __init__(self, send: SendToClient, disconnect: Callable[[], None] | None) -> None:
        self.send = send
        self.disconnect = disconnect
        """Callback that aborts the link; None for the parent process, whose link is never aborted
        by the engine."""
        self.name = ""
        """Id that the client sends in its pings; empty if unknown."""
        self.last_received_s = 0.0


class Attachment:
    """Attachment of a session to one client: only that client may change the session and receives
    its events. `client` is None after that client has disconnected."""

    __slots__ = ("client", "detach_count", "fence")

    def __init__(self, client: ClientState, fence: int) -> None:
        self.client: ClientState | None = client
        self.fence = fence
        self.detach_count = 0
        """Number of times that the session was detached because its client disconnected."""


class DetachedSession(NamedTuple):
    """A session whose client has disconnected. `detach_count` is the attachment's count after that
    disconnect: a higher count now means that the session was attached and detached again."""

    session: str
    attachment: Attachment
    detach_count: int


class InFlightCommand(NamedTuple):
    """A command passed to the loop and not answered yet: its sender, and the command as received,
    with the sender's own number."""

    client: ClientState
    command: LoopCommand
    created_session: str | None
    """Id of the session that was attached for this command and not before, or None; that attachment
    is removed if the loop refuses the command."""


class Clients:
    """The connected gateways, and which of them each session is attached to.

    Owns attachments with their fences, and the numbers of the commands in the loop. Called by the
    listener (a link begins, sends, ends) and by the engine process with the loop's events, on one
    event loop. Always: the fence of a session only grows; a command of a lower fence does not reach
    the loop, except to read; and an event goes to one client, the one attached.
    """

    def __init__(
        self,
        enqueue: Callable[[list[LoopCommand]], None],
        measure_load: Callable[[], EngineLoad],
        config: EngineConfig,
        clock: Callable[[], float],
        folder: str,
    ) -> None:
        """Args:
        enqueue: passes commands to the loop.
        measure_load: returns the load of the engine, for pings.
        config: how long a session stays without a client.
        clock: seconds of the monotonic clock.
        folder: the checkpoint folder of the model.
        """
        self._folder = folder
        self._enqueue = enqueue
        self._measure_load = measure_load
        self._config = config
        self._clock = clock
        self._attachments: dict[str, Attachment] = {}
        self._closing: dict[str, Attachment] = {}
        """Attachments of sessions that are being closed, by session id. They route the last events
        of a session to its client, even if a new session under the same id is already being
        opened."""
        self._commands_in_flight: dict[int, InFlightCommand] = {}
        self._last_number = NO_REPLY
        self.connected: dict[ClientState, None] = {}
        """The clients in the order of their connections, so that a simulated life repeats."""

    # ---- connecting and disconnecting -----------------------------------------------------

    def add(self, send: SendToClient, disconnect: Callable[[], None] | None = None) -> ClientState:
        client = ClientState(send, disconnect)
        client.last_received_s = self._clock()
        self.connected[client] = None
        return client

    def remove(self, client: ClientState) -> None:
        """Remove a client that disconnected. Its turns continue for `detach_grace_s`, and its
        sessions are kept for `detach_keep_s`; those without a fence for DISPOSABLE_GRACE_S."""
        self.connected.pop(client, None)
        detached: list[DetachedSession] = []
        disposable: list[DetachedSession] = []
        for name, attachment in self._attachments.items():
            if attachment.client is client:
                attachment.client, attachment.detach_count = None, attachment.detach_count + 1
                sessions = detached if attachment.fence else disposable
                sessions.append(DetachedSession(name, attachment, attachment.detach_count))
        event_loop, config = asyncio.get_running_loop(), self._config
        if disposable:
            keep_s = min(DISPOSABLE_GRACE_S, config.detach_keep_s)
            event_loop.call_later(keep_s, self._close_detached, disposable)
        if detached:
            event_loop.call_later(config.detach_grace_s, self._pause_detached, detached)
            event_loop.call_later(config.detach_keep_s, self._close_detached, detached)

    def _identify(self, client: ClientState, name: str) -> None:
        """Record the id `name` that a client has sent in a ping. A client already connected under
        this id is disconnected: it has reconnected, and the loss of its previous link has not been
        detected yet."""
        if not name or client.name == name:
            return
        client.name = name
        for previous in [
            other for other in self.connected if other.name == name and other is not client
        ]:
            self.remove(previous)
            if previous.disconnect is not None:
                previous.disconnect()

    def disconnect_silent(self, timeout_s: float) -> None:
        """Disconnect remote clients that have sent nothing for `timeout_s` seconds."""
        since_s = self._clock() - timeout_s
        for client in list(self.connected):
            if client.disconnect is not None and client.last_received_s < since_s:
                client.disconnect()

    # ---- commands in ----------------------------------------------------------------------

    def receive(self, client: ClientState, commands: list[EngineCommand]) -> None:
        """Handle commands received from a client. Commands that the attachment of their session
        does not allow are refused; the others are answered here or passed to the loop, in order."""
        client.last_received_s = self._clock()
        accepted: list[LoopCommand] = []
        for command in commands:
            try:
                self._handle(client, command, accepted)
            except EngineError as error:
                client.send([CommandRefused(command.n, error.code, error.message, error.field)])
            except Exception as error:
                name = type(command).__name__
                log.exception("%s failed because of a bug in the engine", name)
                message = f"the engine failed at {name}: {type(error).__name__}: {error}"
                client.send([CommandRefused(command.n, CommandFailed.code, message)])
        if accepted:
            self._enqueue(accepted)

    def _handle(
        self, client: ClientState, command: EngineCommand, accepted: list[LoopCommand]
    ) -> None:
        created = None
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
                command, created = self._prepare_open(client, command)
            case AttachSession():
                created = self._attach(client, command)
            case ForkSession():
                self._check_attached(client, command)
                created = self._prepare_fork(client, command, accepted)
            case CloseSession():
                self._prepare_close(client, command)
            case _:
                self._check_attached(client, command)
        accepted.append(self._renumber(client, command, created))

    def _prepare_open(
        self, client: ClientState, command: OpenSession
    ) -> tuple[OpenSession | AttachSession, str | None]:
        """Attach the session of an OpenSession to `client`. If the engine already has the session,
        but detached or attached under a lower fence, the session is restarted: the command becomes
        an AttachSession with an empty log. Returns the command for the loop, and the session's id
        if it was not attached before, else None. Raises StaleEngineFence as `_attach` does."""
        attachment = self._attachments.get(command.session)
        if attachment is None or (
            attachment.client is client and attachment.fence == command.fence
        ):
            created = self._attach(client, command)
            return command, created
        attach = AttachSession(command.n, command, [], fence=command.fence)
        return attach, self._attach(client, attach)

    def _prepare_fork(
        self, client: ClientState, command: ForkSession, accepted: list[LoopCommand]
    ) -> str | None:
        """Attach the child of a ForkSession to `client` and return the child's id. A detached
        session with that id, left by an earlier fork whose reply was lost with the link, is closed
        first. Returns None if any other session has the id: the loop then refuses the fork."""
        attachment = self._attachments.get(command.child)
        if (
            attachment is not None
            and attachment.client is None
            and command.child_fence >= attachment.fence
        ):
            accepted.append(CloseSession(NO_REPLY, command.child))
        elif attachment is not None:
            return None
        self._attachments[command.child] = Attachment(client, command.child_fence)
        return command.child

    def _attach(self, client: ClientState, command: OpenSession | AttachSession) -> str | None:
        """Attach a session to a client. Returns the session's id if it was not attached before,
        else None. Raises StaleEngineFence if the command's fence is lower than the session's, or
        equal to it while another client is attached."""
        session, fence = command.session, command.fence
        attachment = self._attachments.get(session)
        if attachment is None:
            self._attachments[session] = Attachment(client, fence)
            return session
        if fence < attachment.fence or (
            fence == attachment.fence and attachment.client not in (None, client)
        ):
            raise _stale_fence(session, fence, attachment)
        if attachment.client is not None and attachment.client is not client:
            attachment.client.send([SessionSuperseded(session, fence)])
        attachment.client, attachment.fence = client, fence
        return None

    def _prepare_close(self, client: ClientState, command: CloseSession) -> None:
        """Release the attachment of a session that is to be closed. The client of a higher fence
        than the session's, which has taken the session over, need not have attached it; nor that
        of the same fence if the session is detached. Raises as `_check_attached` does."""
        attachment = self._attachments.get(command.session)
        if attachment is None:
            return
        holder = attachment.client
        if command.fence < attachment.fence or (command.fence == attachment.fence and holder):
            self._check_attached(client, command)
        elif holder is not None and holder is not client:
            holder.send([SessionSuperseded(command.session, command.fence)])
        del self._attachments[command.session]
        self._closing[command.session] = attachment

    def _check_attached(self, client: ClientState, command: SessionCommand) -> None:
        """Check that the session is attached to the client, and raise its fence to the command's.

        A command on an unknown session is left for the loop to refuse. Raises StaleEngineFence for
        a lower fence, and UnknownEngineSession for a session of another client.
        """
        attachment = self._attachments.get(command.session)
        if attachment is None:
            return
        if command.fence < attachment.fence:
            raise _stale_fence(command.session, command.fence, attachment)
        if attachment.client is not client:
            raise UnknownEngineSession(
                f"session {command.session} is not attached to this client", field="session"
            )
        attachment.fence = command.fence

    def _renumber(
        self, client: ClientState, command: LoopCommand, created_session: str | None
    ) -> LoopCommand:
        """Return the command under a number that is unique in the loop, because two clients may use
        the same number, and record it as in flight until the loop replies. `created_session`: id of
        the session that was attached to the client for this command, or None. NO_REPLY commands are
        recorded too, because that attachment must be removed if the loop refuses the command."""
        self._last_number += 1
        self._commands_in_flight[self._last_number] = InFlightCommand(
            client, command, created_session
        )
        return msgspec.structs.replace(command, n=self._last_number)

    # ---- events out -----------------------------------------------------------------------

    def send_all(self, events: list[EngineEvent]) -> None:
        """Send to each client the events that concern it, in order."""
        events_by_client: dict[ClientState, list[EngineEvent]] = {}
        for event in events:
            client, routed = self._route(event)
            if client is not None:
                events_by_client.setdefault(client, []).append(routed)
        for client, own_events in events_by_client.items():
            client.send(own_events)

    def _route(self, event: EngineEvent) -> tuple[ClientState | None, EngineEvent]:
        match event:  # tokens, the most frequent, first
            case TurnTokens() | TurnEnded():
                attachment = self._closing.get(event.session) or self._attachments.get(
                    event.session
                )
                return (attachment.client if attachment else None), event
            case CommandDone() | CommandRefused():
                return self._route_reply(event)
            case SessionExpired():
                attachment = self._attachments.pop(event.session, None)
                return (attachment.client if attachment else None), event
            case EngineReady() | ModelLoading() | ModelLoadFailed() | SessionSuperseded() | Pong():
                return None, event
            case _:
                assert_never(event)

    def _route_reply(
        self, event: CommandDone | CommandRefused
    ) -> tuple[ClientState | None, EngineEvent]:
        in_flight = self._commands_in_flight.pop(event.n, None)
        if in_flight is None:
            return None, event
        refused = isinstance(event, CommandRefused)
        if refused and in_flight.created_session is not None:
            self._attachments.pop(in_flight.created_session, None)
        if isinstance(in_flight.command, CloseSession):
            self._closing.pop(in_flight.command.session, None)
        client = in_flight.client if in_flight.command.n != NO_REPLY else None
        return client, msgspec.structs.replace(event, n=in_flight.command.n)

    # ---- detached sessions ------------------------------------------------------------------

    def _pause_detached(self, detached: list[DetachedSession]) -> None:
        self._enqueue([PauseTurn(NO_REPLY, name) for name in self._filter_detached(detached)])

    def _close_detached(self, detached: list[DetachedSession]) -> None:
        closed = self._filter_detached(detached)
        for name in closed:
            del self._attachments[name]
        self._enqueue([CloseSession(NO_REPLY, name) for name in closed])

    def _filter_detached(self, detached: list[DetachedSession]) -> list[str]:
        """Return the ids of those sessions that are still open and have not been attached again."""
        return [
            name
            for name, attachment, detach_count in detached
            if attachment.client is None
            and attachment.detach_count == detach_count
            and self._attachments.get(name) is attachment
        ]


def _read_model_files(folder: str) -> dict[str, bytes]:
    """Return the contents of the tokenizer, configuration and template files of a checkpoint
    folder, by file name."""
    return {
        file.name: file.read_bytes()
        for file in Path(folder).iterdir()
        if file.suffix in MODEL_FILE_SUFFIXES and file.stat().st_size <= MODEL_FILE_BYTES_MAX
    }


def _stale_fence(session: str, fence: int, attachment: Attachment) -> StaleEngineFence:
    return StaleEngineFence(
        f"session {session} was taken over: its fence is {attachment.fence}, yours is {fence}",
        field="fence",
    )

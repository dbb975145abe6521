"""Router: sends each command to the engine of its session; moves the sessions of lost engines.

A session stays on the engine where it was placed. If the link to that engine is lost, the session
waits RECONNECT_GRACE_S for a new link to the same engine, where its KV may be intact. After that
the session moves to another connected engine, or waits for the first one to connect. On a new link
or engine it is attached from its replica before its next command is sent. Sessions that make engine
processes die are quarantined (see quarantine.py).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

import msgspec

from continuo.engine.client.connection import (
    PING_INTERVAL_S,
    UNRESPONSIVE_AFTER_S,
    EngineConnection,
)
from continuo.engine.client.placement import PlacementCandidate, choose_engine
from continuo.engine.client.quarantine import QUARANTINE_DEATHS, Quarantine
from continuo.engine.client.replica import SessionReplicas
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.errors import (
    ERRORS_BY_CODE,
    EngineError,
    EngineLost,
    LinkRefused,
    SessionQuarantined,
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
    EngineReady,
    ForkSession,
    GetModelFiles,
    GetSessionInfo,
    GetStats,
    ListSessions,
    LocateSession,
    ModelLoadFailed,
    ModelLoading,
    OpenSession,
    Ping,
    Pong,
    SessionCommand,
    SessionExpired,
    SessionInfo,
    SessionSuperseded,
    TurnEnded,
    TurnTokens,
)

log = logging.getLogger(__name__)

RECONNECT_GRACE_S = 0.5
"""Seconds that the sessions of a lost engine wait for its return before they move to others."""
RECORD_WAIT_S = 30.0
"""Seconds that a session suspected of an engine's death waits for the flight record of that engine.
The next engine process reports the record, which shows whether the session was alone in the last
step."""
LOCATE_TIMEOUT_S = 1.0
"""Limit for locating or inspecting a session on all engines."""
QUARANTINED_MESSAGE = (
    f"engine processes died at least {QUARANTINE_DEATHS} times while they computed this session, "
    "the last time with no other session in the step; it can only be closed"
)
STALE_COPY_S = 900.0
"""Maximum seconds for which stale copies (of sessions that moved to another engine) on a
disconnected engine are remembered, to be closed when it reconnects. After that time the engine has
closed its detached sessions by itself."""


class Placement:
    """Location of a session: its engine, the link to that engine, and the session's fence."""

    __slots__ = ("connection", "fence", "incarnation", "link_epoch")

    def __init__(self, connection: EngineConnection, fence: int) -> None:
        self.fence = fence
        self.bind(connection)

    def bind(self, connection: EngineConnection) -> None:
        self.connection = connection
        self.link_epoch = connection.link_epoch
        """`EngineConnection.link_epoch` of the link on which the session was last opened or
        attached; -1 if the session must be attached before its next command."""
        self.incarnation = _get_incarnation(connection)

    @property
    def is_linked(self) -> bool:
        """Whether the link on which the session was last opened or attached is still connected."""
        return self.connection.is_connected and self.link_epoch == self.connection.link_epoch

    @property
    def is_lost(self) -> bool:
        """Whether the engine process that has the session is disconnected or was restarted."""
        return not self.connection.is_connected or self.incarnation != _get_incarnation(
            self.connection
        )


class PendingCommand:
    """A command without a reply yet. `connection` is the engine that it was sent to; None while the
    command waits for an engine."""

    __slots__ = ("command", "connection", "link_epoch", "placement", "reply")

    def __init__(self, command: EngineCommand) -> None:
        self.command = command
        self.reply: asyncio.Future[CommandDone] = asyncio.get_running_loop().create_future()
        self.connection: EngineConnection | None = None
        self.placement: Placement | None = None
        """For a CloseSession: the placement of its session when the command was sent."""
        self.link_epoch = 0


class Router:
    def __init__(self) -> None:
        self.client_id = secrets.token_hex(8)
        self.connections: list[EngineConnection] = []
        self.turns: dict[tuple[str, str], TurnStream] = {}
        self.replicas = SessionReplicas()
        self.quarantine = Quarantine()
        self.first_ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self.failure: EngineLost | None = None
        """Error with which all further commands fail; set when no engine will be available any
        more."""
        self.failed = asyncio.Event()
        self.on_expired: Callable[[str], None] = lambda _session: None
        self.on_superseded: Callable[[str], None] = lambda _session: None
        self._placements: dict[str, Placement] = {}
        self._stale_copies: dict[EngineConnection, dict[str, int]] = {}
        """For each disconnected engine, the sessions that have moved to another one and must be
        closed when it reconnects, with their fences."""
        self._preferred: dict[str, str] = {}
        """For each session being attached, the incarnation of the engine that may have its KV."""
        self._pending: dict[int, PendingCommand] = {}
        self._last_number = 0

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    # ---- commands -------------------------------------------------------------------------

    async def request(self, command: EngineCommand) -> CommandDone:
        """Send a command and wait for its reply. Raises the engine's EngineError if it refuses the
        command, and EngineLost if no engine will be available."""
        return await self.submit(command).reply

    def submit(
        self, command: EngineCommand, connection: EngineConnection | None = None
    ) -> PendingCommand:
        """Send a command, or queue it until an engine is available. `connection` is the preferred
        engine for a command on no session, or on a session that is not placed."""
        pending = PendingCommand(command)
        pending.reply.add_done_callback(_mark_retrieved)
        if self.failure is not None:
            pending.reply.set_exception(self.failure)
            return pending
        self._pending[command.n] = pending
        if isinstance(command, OpenSession):
            self.quarantine.release(command.session)
        if self._is_quarantined(command):
            self._resolve_quarantined(command)
            return pending
        pending.connection = connection
        self._dispatch(pending)
        return pending

    async def request_all(self, make_command: Callable[[int], EngineCommand]) -> list[CommandDone]:
        """Send a command to every available engine and wait for all replies. If none is available,
        the command waits for the first engine that becomes available."""
        requests: list[PendingCommand] = []
        for connection in self._list_available() or [None]:
            requests.append(self.submit(make_command(self.next_number()), connection))
        return list(await asyncio.gather(*(pending.reply for pending in requests)))

    def subscribe(self, turn: TurnStream) -> None:
        """Deliver the events of a turn to this stream. A stream of the same turn that was
        subscribed before ends with StaleEngineFence."""
        key = (turn.session, turn.id)
        if previous := self.turns.get(key):
            previous.put(StaleEngineFence(f"session {turn.session} was taken over"))
        self.turns[key] = turn

    def unsubscribe(self, turn: TurnStream) -> None:
        if self.turns.get((turn.session, turn.id)) is turn:
            del self.turns[turn.session, turn.id]

    async def attach(self, command: AttachSession, preferred: str | None) -> CommandDone:
        """Attach a session, if possible to the engine with the incarnation `preferred`, which may
        have its KV. If the session is new to this client, it is closed on all other engines,
        because its previous client may have placed it on any of them."""
        session, is_new = command.session, command.session not in self._placements
        if preferred is not None:
            self._preferred[session] = preferred
        try:
            done = await self.request(command)
        finally:
            self._preferred.pop(session, None)
        for connection in self.connections if is_new else ():
            if not self._is_placed_on(session, connection):
                self._close_stale_copy(connection, session, command.fence)
        return done

    async def locate(self, session: str) -> str | None:
        """Ask all engines for a session, and return the incarnation of the one that has it,
        whichever client it is attached to. Returns None if no engine reports the session within
        LOCATE_TIMEOUT_S. Also returns None if fewer than two engines respond, because then there is
        no choice of engine."""
        up = [connection for connection in self.connections if connection.is_responsive]
        if len(up) < 2:
            return None
        found = await self._first_success(
            [
                self.submit(LocateSession(self.next_number(), session), connection)
                for connection in up
            ]
        )
        if found is None or found.connection is None or found.connection.ready is None:
            return None
        return found.connection.ready.incarnation

    async def inspect(self, session: str) -> SessionInfo | None:
        """Return the SessionInfo of a session, whichever client it is attached to. Returns None if
        no engine reports it within LOCATE_TIMEOUT_S."""
        up = [connection for connection in self.connections if connection.is_responsive]
        if not up or self.failure is not None:
            return None
        found = await self._first_success(
            [
                self.submit(GetSessionInfo(self.next_number(), session), connection)
                for connection in up
            ]
        )
        return None if found is None else found.reply.result().info

    async def _first_success(self, requests: list[PendingCommand]) -> PendingCommand | None:
        """Wait for the replies, at most LOCATE_TIMEOUT_S, and return the first request in the list
        that succeeded; None if there is none. Later replies are ignored."""
        await asyncio.wait([pending.reply for pending in requests], timeout=LOCATE_TIMEOUT_S)
        for pending in requests:
            self._pending.pop(pending.command.n, None)
        answered = (pending for pending in requests if pending.reply.done())
        return next((p for p in answered if p.reply.exception() is None), None)

    def has_session(self, session: str) -> bool:
        """Return whether a session is open, even if its engine was lost, and no command to close it
        is pending."""
        return self.replicas.has_session(session) and not any(
            isinstance(pending.command, CloseSession) and pending.command.session == session
            for pending in self._pending.values()
        )

    def count_without_engine(self) -> int:
        """Count the sessions whose engine was lost and that are not attached to another one yet."""
        return sum(
            placement.is_lost and self.replicas.has_session(session)
            for session, placement in self._placements.items()
        )

    def set_fence(self, session: str, fence: int) -> None:
        """Set the fence that later commands on a session carry."""
        if placement := self._placements.get(session):
            placement.fence = fence

    def fence_of(self, session: str) -> int:
        placement = self._placements.get(session)
        return placement.fence if placement else 0

    def incarnation_of(self, session: str) -> str | None:
        """Return the incarnation of the engine that has a session; None if it is not placed."""
        placement = self._placements.get(session)
        return (
            placement.connection.ready.incarnation
            if placement and placement.connection.ready
            else None
        )

    # ---- dispatch -------------------------------------------------------------------------

    def _list_available(self) -> list[EngineConnection]:
        """List the engines that respond; if none does, those that are connected."""
        up = [connection for connection in self.connections if connection.is_connected]
        return [connection for connection in up if connection.is_responsive] or up

    def _dispatch(self, pending: PendingCommand) -> None:
        command = pending.command
        connection = self._route(command, pending.connection)
        pending.connection = connection
        if connection is None:
            return
        pending.link_epoch = connection.link_epoch
        try:
            self._send(connection, command)
            if isinstance(command, CloseSession):
                pending.placement = self._placements.get(command.session)
        except EngineError as error:
            self._resolve(command.n, error)

    def _route(
        self, command: EngineCommand, before: EngineConnection | None
    ) -> EngineConnection | None:
        match command:
            case OpenSession() | AttachSession():
                placement = self._placements.get(command.session)
                if placement is not None and self._awaits_record(command.session, placement):
                    return None
                return self._choose_connection(self._preferred.get(command.session))
            case (
                ListSessions()
                | GetStats()
                | DrainEngine()
                | Ping()
                | LocateSession()
                | GetModelFiles()
            ):
                up = self._list_available()
                return before if before in up else next(iter(up), None)
            case GetSessionInfo() if (
                before in self._list_available() and command.session not in self._placements
            ):
                return before
            case _:
                return self._ensure_attached(command.session)

    def _choose_connection(self, preferred: str | None = None) -> EngineConnection | None:
        """Choose an engine for a session that has none. Returns None if none is connected."""
        up = self._list_available()
        candidates = [
            PlacementCandidate(
                _get_incarnation(connection), connection.load, connection.placed_sessions
            )
            for connection in up
        ]
        chosen = choose_engine(candidates, preferred)
        if chosen is None:
            if not up:
                return None
            chosen = 0  # all are draining: the engine refuses
        up[chosen].placed_sessions += 1
        return up[chosen]

    def _ensure_attached(self, session: str) -> EngineConnection | None:
        """Move a session to another engine, or attach it again, if necessary, and return its
        engine. Returns None if the session must wait for an engine."""
        placement = self._placements.get(session)
        if placement is None:
            return next(iter(self._list_available()), None)
        if not placement.connection.is_connected or self._should_migrate(
            session, placement.connection
        ):
            placement = self._relocate(session, placement)
        if placement is None:
            return None
        if placement.link_epoch != placement.connection.link_epoch:
            isolated_ids = self.quarantine.isolated_ids(session)
            attach = self.replicas.build_attach(
                session, self.turns, fence=placement.fence, isolated_ids=isolated_ids
            )
            placement.bind(placement.connection)
            if attach is not None:
                placement.connection.send([attach])
        return placement.connection

    def _should_migrate(self, session: str, connection: EngineConnection) -> bool:
        """Return whether a session should move to another engine, because its engine is draining,
        the session has no turn, and another engine accepts sessions."""
        return (
            connection.load.draining
            and not self.replicas.has_turn(session)
            and any(not other.load.draining for other in self._list_available())
        )

    def _relocate(self, session: str, placement: Placement) -> Placement | None:
        """Place a session on another engine. Returns None if the session must wait: for its engine
        to reconnect, for the flight record of its dead engine, or for any engine."""
        old = placement.connection
        if (
            not old.is_connected
            and time.monotonic() - old.disconnected_since_s < RECONNECT_GRACE_S
            and old in self.connections
        ):
            return None
        if self._awaits_record(session, placement):
            return None
        connection = self._choose_connection()
        if connection is None:
            return None
        if connection is not old:
            self._close_stale_copy(old, session, placement.fence)
        placement.connection, placement.link_epoch = connection, -1
        return placement

    def _awaits_record(self, session: str, placement: Placement) -> bool:
        """Return whether a session is suspected of its engine's death and must wait for the flight
        record of that engine."""
        old = placement.connection
        if (
            old.is_connected
            or old not in self.connections
            or time.monotonic() - old.disconnected_since_s >= RECORD_WAIT_S
        ):
            return False
        return self.quarantine.must_wait_for(session, placement.incarnation)

    def _close_stale_copy(self, connection: EngineConnection, session: str, fence: int) -> None:
        """Close the stale copy of a session on an engine; queued until reconnect if the engine is
        disconnected."""
        if connection.is_connected:
            connection.send([CloseSession(0, session, fence=fence)])
        else:
            self._stale_copies.setdefault(connection, {})[session] = fence

    def _send(self, connection: EngineConnection, command: EngineCommand) -> None:
        """Send a command with the fence of its session, and update placements."""
        match command:
            case (
                ListSessions()
                | GetStats()
                | DrainEngine()
                | Ping()
                | LocateSession()
                | GetModelFiles()
            ):
                pass
            case OpenSession() | AttachSession():
                previous = self._placements.get(command.session)
                fence = max(command.fence, previous.fence if previous else 0)
                self._placements[command.session] = Placement(connection, fence)
                if isolated_ids := self.quarantine.isolated_ids(command.session):
                    command = msgspec.structs.replace(command, apart=isolated_ids)
            case _:
                command = self.replicas.translate(command)
                placement = self._placements.get(command.session)
                if placement is not None and placement.fence:
                    command = msgspec.structs.replace(command, fence=placement.fence)
                if isinstance(command, ForkSession):
                    self._placements[command.child] = Placement(connection, command.child_fence)
        connection.send([command])

    # ---- events of connections ------------------------------------------------------------

    def on_events(self, connection: EngineConnection, events: list[EngineEvent]) -> None:
        for event in events:
            self._handle_event(connection, event)

    def _handle_event(self, connection: EngineConnection, event: EngineEvent) -> None:
        match event:
            case TurnTokens():
                if self._is_placed_on(event.session, connection):
                    self._handle_tokens(event)
            case TurnEnded():
                if self._is_placed_on(event.session, connection) and self._has_received_all(event):
                    self._handle_turn_ended(event)
            case CommandDone():
                self._handle_done(event, connection)
            case CommandRefused():
                self._handle_refused(event, connection)
            case SessionExpired():
                if self._is_placed_on(event.session, connection):
                    self._remove_session(event.session)
                    self.on_expired(event.session)
            case SessionSuperseded():
                if self.fence_of(event.session) < event.fence:
                    self._handle_superseded(event.session)
            case EngineReady() | ModelLoading() | ModelLoadFailed() | Pong():
                pass

    def _handle_tokens(self, event: TurnTokens) -> None:
        self.replicas.apply_tokens(event)
        self.quarantine.count_drawn(event.session, len(event.ids))
        if turn := self.turns.get((event.session, event.turn)):
            turn.put(event)

    def _handle_turn_ended(self, event: TurnEnded) -> None:
        self.replicas.apply_turn_ended(event)
        if event.reason in ("stop", "length"):
            self.quarantine.clear(event.session)
        if turn := self.turns.pop((event.session, event.turn), None):
            turn.put(event)

    def _has_received_all(self, ended: TurnEnded) -> bool:
        """Return whether all ids of an ended turn were received. If not, this client is about to
        attach the session again; the engine then resends the missing ids and TurnEnded."""
        turn = self.turns.get((ended.session, ended.turn))
        return turn is None or turn.received == ended.output_tokens

    def on_ready(self, ready: EngineReady) -> None:
        """Check that an engine serves the same model as the others, because sessions move between
        them, and evaluate the flight record of its predecessor. Raises LinkRefused."""
        if not self.first_ready.done():
            self.first_ready.set_result(ready)
        first = self.first_ready.result()
        for name in ("model", "vocab_size", "max_model_len", "digest"):
            own, expected = getattr(ready, name), getattr(first, name)
            if own != expected:
                raise LinkRefused(f"its {name} is {own}; that of the other engines is {expected}")
        self.quarantine.record_reconnect(ready.incarnation)
        if ready.predecessor is not None:
            session = self.quarantine.attribute_crash(ready.predecessor, time.monotonic())
            if session is not None:
                self._quarantine_session(session)

    def on_connected(self, connection: EngineConnection) -> None:
        """Close the sessions that moved away from an engine while it was disconnected, then send
        waiting commands."""
        for session, fence in self._stale_copies.pop(connection, {}).items():
            if not self._is_placed_on(session, connection):
                connection.send([CloseSession(0, session, fence=fence)])
        self._redispatch()

    def on_disconnected(self, connection: EngineConnection) -> None:
        """Interrupt the turns of a lost engine, and record the loss for the quarantine. The
        engine's pending commands wait until it reconnects, or are sent to another engine."""
        for turn in self.turns.values():
            placement = self._placements.get(turn.session)
            if placement is not None and placement.connection is connection:
                turn.interrupt()
        event_loop, lost = asyncio.get_running_loop(), _get_incarnation(connection)
        sessions = [
            s
            for s, p in self._placements.items()
            if (p.connection, p.incarnation) == (connection, lost)
        ]
        busy = {*self.replicas.list_generating(), *self._list_awaited_sessions()}.intersection(
            sessions
        )
        self.quarantine.record_loss(lost, sessions, busy, time.monotonic())
        event_loop.call_later(RECONNECT_GRACE_S + 0.01, self._redispatch)
        event_loop.call_later(RECORD_WAIT_S + 0.01, self._redispatch)

    def on_given_up(self, connection: EngineConnection) -> None:
        self.remove(connection)
        if not self.connections:
            self.fail(EngineLost("the engine was lost and could not be restarted"))

    def remove(self, connection: EngineConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        self._stale_copies.pop(connection, None)
        self._redispatch()

    def fail(self, error: EngineLost) -> None:
        """Fail all pending commands and turns, because no engine will be available any more."""
        self.failure = error
        self.failed.set()
        if not self.first_ready.done():
            self.first_ready.cancel()
        for n in list(self._pending):
            self._resolve(n, error)
        for turn in list(self.turns.values()):
            turn.put(error)
        self.turns.clear()

    async def monitor(self) -> None:
        """Ping every engine once per PING_INTERVAL_S, and expire idle sessions. Unresponsive
        engines are disconnected if others respond, so that their sessions move."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(PING_INTERVAL_S)
            is_late = time.monotonic() - before_s > PING_INTERVAL_S + UNRESPONSIVE_AFTER_S / 2
            self._expire_sessions()
            for connection in self.connections:
                connection.ping(is_late=is_late)
                if (
                    not connection.is_connected
                    and time.monotonic() - connection.disconnected_since_s > STALE_COPY_S
                ):
                    self._stale_copies.pop(connection, None)
            silent = [
                connection
                for connection in self.connections
                if connection.is_connected and not connection.is_responsive
            ]
            if silent and len(silent) < sum(
                connection.is_connected for connection in self.connections
            ):
                for connection in silent:
                    connection.disconnect("it does not respond, but other engines do")

    def _expire_sessions(self) -> None:
        """Expire idle sessions whose engine cannot report the expiry, because the link on which
        they were attached is lost."""
        for session in self.replicas.list_timed_out():
            placement = self._placements.get(session)
            if placement is None or placement.is_linked or session in self._list_awaited_sessions():
                continue
            self._remove_session(session)
            self.on_expired(session)

    def _list_awaited_sessions(self) -> set[str]:
        """List the sessions with a pending command."""
        commands = (pending.command for pending in self._pending.values())
        return {command.session for command in commands if isinstance(command, SessionCommand)}

    # ---- quarantine -----------------------------------------------------------------------

    def _quarantine_session(self, session: str) -> None:
        """Quarantine a session: fail its turn, refuse its pending commands, and remove its copies
        here and on its engine."""
        log.error("session %s: %s", session, QUARANTINED_MESSAGE)
        placement = self._placements.get(session)
        if placement is not None and not placement.is_lost:
            self._close_stale_copy(placement.connection, session, placement.fence)
        for turn in [turn for turn in self.turns.values() if turn.session == session]:
            if (ended := self.replicas.build_failed_end(turn, QUARANTINED_MESSAGE)) is not None:
                self.unsubscribe(turn)
                turn.put(ended)
        self._remove_session(session)
        for pending in list(self._pending.values()):
            if self._is_quarantined(pending.command):
                self._resolve_quarantined(pending.command)

    def _is_quarantined(self, command: EngineCommand) -> bool:
        return isinstance(command, SessionCommand) and command.session in self.quarantine

    def _resolve_quarantined(self, command: EngineCommand) -> None:
        """Reply to a command on a quarantined session: only a close succeeds."""
        is_close = isinstance(command, CloseSession)
        self._resolve(
            command.n,
            CommandDone(command.n)
            if is_close
            else SessionQuarantined(QUARANTINED_MESSAGE, field="session"),
        )

    def _redispatch(self) -> None:
        """Attach the sessions with running turns again where necessary, and send the commands that
        wait for an engine or whose link was lost. Those without an available engine keep
        waiting."""
        if self.failure is not None:
            return
        for session in self.replicas.list_generating():
            self._ensure_attached(session)
        for pending in list(self._pending.values()):
            if (
                pending.connection is None
                or not pending.connection.is_connected
                or pending.link_epoch != pending.connection.link_epoch
            ):
                self._dispatch(pending)

    # ---- replies --------------------------------------------------------------------------

    def _is_placed_on(self, session: str, connection: EngineConnection) -> bool:
        placement = self._placements.get(session)
        return placement is not None and placement.connection is connection

    def _handle_done(self, done: CommandDone, connection: EngineConnection) -> None:
        """Apply a command that the engine has executed, even if its caller no longer waits."""
        pending = self._pending.get(done.n)
        if pending is None or pending.connection is not connection:
            return
        assert connection.ready is not None
        self.replicas.apply_command(pending.command, done, connection.ready.max_model_len)
        if isinstance(pending.command, CloseSession):
            session = pending.command.session
            if (
                self._placements.get(session) is pending.placement
            ):  # else opened or attached again since the close
                self._placements.pop(session, None)
                self.quarantine.clear(session)
        self._resolve(done.n, done)

    def _handle_refused(self, refused: CommandRefused, connection: EngineConnection) -> None:
        if pending := self._pending.get(refused.n):
            if refused.code == UnknownEngineSession.code:
                self._remove_unknown(pending.command, connection)
            match pending.command:
                case (
                    OpenSession(session=created)
                    | AttachSession(session=created)
                    | ForkSession(child=created)
                ):
                    placement = self._placements.get(created)
                    is_ours = placement is not None and placement.fence == pending.command.fence
                    if is_ours and not self.replicas.has_session(created):
                        del self._placements[created]
                case _:
                    pass
        kind = ERRORS_BY_CODE.get(refused.code, EngineError)
        self._resolve(refused.n, kind(refused.message, field=refused.field))

    def _remove_unknown(self, command: EngineCommand, connection: EngineConnection) -> None:
        """Remove the replica of a session that its engine does not have, so that the session can be
        opened again."""
        if isinstance(command, SessionCommand) and self._is_placed_on(command.session, connection):
            self.replicas.remove(command.session)

    def _resolve(self, n: int, outcome: CommandDone | EngineError) -> None:
        pending = self._pending.pop(n, None)
        if pending is None or pending.reply.done():
            return
        if isinstance(outcome, EngineError):
            pending.reply.set_exception(outcome)
        else:
            pending.reply.set_result(outcome)

    def _remove_session(self, session: str) -> None:
        self.replicas.remove(session)
        self._placements.pop(session, None)
        self.quarantine.clear(session)

    def _handle_superseded(self, session: str) -> None:
        """Remove a session that another client has taken over; its turns end with StaleEngineFence.
        Pending commands on it are refused by the engine."""
        self._remove_session(session)
        self.on_superseded(session)
        for key in [key for key in self.turns if key[0] == session]:
            self.turns.pop(key).put(StaleEngineFence(f"session {session} was taken over"))


def _get_incarnation(connection: EngineConnection) -> str:
    return connection.ready.incarnation if connection.ready else ""


def _mark_retrieved(reply: "asyncio.Future[CommandDone]") -> None:
    """Mark the exception of a reply as retrieved, because its caller may no longer wait; asyncio
    would log an error otherwise."""
    if not reply.cancelled():
        reply.exception()

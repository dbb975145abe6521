"""Router: sends each command to the engine of its session, and chooses an engine for each session.

A session stays on the engine where it was placed. If the link to that engine is lost, the session
is detached: its turns and commands fail with SessionDetached until its owner attaches it again. An
attach waits RECONNECT_GRACE_S for a new link to the same engine, where the KV may be intact; after
that it goes to another connected engine, or waits for the first one to connect. Regular sessions
do not survive the loss. Sessions that make engine processes die are quarantined (see
quarantine.py).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from continuo.engine.client.connection import (
    PING_INTERVAL_S,
    UNRESPONSIVE_AFTER_S,
    EngineConnection,
)
from continuo.engine.client.engine_selection import PlacementCandidate, choose_engine
from continuo.engine.client.pending_commands import PendingCommand, PendingCommands
from continuo.engine.client.placements import Placement, StaleCopies
from continuo.engine.client.quarantine import QUARANTINE_DEATHS, Quarantine
from continuo.engine.client.turn_streams import TurnStreams
from continuo.engine.errors import (
    ERRORS_BY_CODE,
    Busy,
    EngineError,
    EngineLost,
    LinkRefused,
    SessionDetached,
    SessionQuarantined,
    StaleEngineFence,
    UnknownEngineSession,
)
from continuo.engine.wire.messages import (
    AttachSession,
    CloseSession,
    CommandDone,
    CommandRefused,
    EngineCommand,
    EngineEvent,
    EngineReady,
    FencedCommand,
    ForkSession,
    Generate,
    GetSessionInfo,
    LocateSession,
    ModelLoadFailed,
    ModelLoading,
    OpenSession,
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
"""Seconds that a session whose engine was lost waits for its return before it is attached to
another one."""
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


class SessionSubscriber(NamedTuple):
    """Callbacks, each called with the id of a session."""

    on_superseded: Callable[[str], None]
    on_lost: Callable[[str], None]


class Router:
    """The placement of every session of this gateway, and the commands and turns on their way.

    Owns placements, pending commands, turn streams and the quarantine; connections only carry what
    it sends. Called by EngineClient and EngineFleet, and by each EngineConnection with what it
    receives, all on one event loop. Always: a placed session has one engine and one fence; each
    pending command is resolved once, by a reply or by an error; and a turn stream ends once.
    """

    def __init__(self) -> None:
        self.client_id = secrets.token_hex(8)
        self.connections: list[EngineConnection] = []
        self.turns = TurnStreams()
        self.quarantine = Quarantine()
        self.first_ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self.failure: EngineLost | None = None
        """Error with which all further commands fail; set when no engine will be available any
        more."""
        self.failed = asyncio.Event()
        self.subscribers: list[SessionSubscriber] = []
        self.placements: dict[str, Placement] = {}
        self._stale_copies = StaleCopies()
        self._pending = PendingCommands()

    def next_number(self) -> int:
        return self._pending.next_number()

    # ---- commands -------------------------------------------------------------------------

    async def request(
        self, command: EngineCommand, preferred: str | None = None, *, waits: bool = True
    ) -> CommandDone:
        """Send a command and wait for its reply. `preferred` and `waits` as in PendingCommand.
        Raises the engine's EngineError if it refuses the command, SessionDetached if the engine of
        its session was lost, and EngineLost if no engine will be available. If the caller is
        cancelled before the command was sent, it is not sent any more."""
        pending = self.submit(command, preferred=preferred, waits=waits)
        try:
            return await pending.reply
        finally:
            if pending.connection is None:
                self._pending.discard(pending)
            del pending  # whose error keeps this frame

    def submit(
        self,
        command: EngineCommand,
        connection: EngineConnection | None = None,
        *,
        preferred: str | None = None,
        waits: bool = True,
    ) -> PendingCommand:
        """Send a command, or queue it until an engine is available. `connection` is the preferred
        engine for a command on no session, or on a session that is not placed."""
        pending = PendingCommand(command, preferred, waits=waits)
        self._pending.add(pending)
        if self.failure is not None:
            self._pending.resolve(command.n, self.failure)
            return pending
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
        try:
            return list(await asyncio.gather(*(pending.reply for pending in requests)))
        finally:
            del requests  # whose errors keep this frame

    async def attach(
        self, command: AttachSession, preferred: str | None, *, waits: bool
    ) -> CommandDone:
        """Attach a session, if possible to the engine with the incarnation `preferred`, which may
        have its KV. If the session is new to this client, it is closed on all other engines,
        because its previous client may have placed it on any of them."""
        session, is_new = command.session, command.session not in self.placements
        done = await self.request(command, preferred, waits=waits)
        for connection in self.connections if is_new else ():
            if not self._is_placed_on(session, connection):
                self._close_stale_copy(connection, session, command.fence)
        return done

    def close_elsewhere(self, command: CloseSession) -> bool:
        """Close a session with a fence on all engines if it is not open in this client: its
        previous client may have placed it on any of them. Returns whether that was done."""
        if not command.fence or command.session in self.placements:
            return False
        for connection in self.connections:
            self._close_stale_copy(connection, command.session, command.fence)
        return True

    async def locate(self, session: str) -> str | None:
        """Return the incarnation of the engine that has a session, whichever client it is attached
        to. Returns None if no engine reports it within LOCATE_TIMEOUT_S, or fewer than two engines
        respond."""
        if sum(connection.is_responsive for connection in self.connections) < 2:
            return None
        found = await self._ask_all(LocateSession, session, LOCATE_TIMEOUT_S)
        return None if found is None or found.connection is None else found.connection.incarnation

    async def inspect(self, session: str, within_s: float = LOCATE_TIMEOUT_S) -> SessionInfo | None:
        """Return the SessionInfo of a session, whichever client it is attached to. Returns None if
        no engine reports it within `within_s`."""
        found = await self._ask_all(GetSessionInfo, session, within_s)
        return None if found is None else found.reply.result().info

    async def _ask_all(
        self, make_command: Callable[[int, str], EngineCommand], session: str, within_s: float
    ) -> PendingCommand | None:
        """Send a command to all responsive engines, and wait until it succeeds at one of them, at
        most `within_s`. Returns that command, or None. Later replies are ignored."""
        up = [connection for connection in self.connections if connection.is_responsive]
        if not up or self.failure is not None:
            return None
        requests = [self.submit(make_command(self.next_number(), session), each) for each in up]
        found, waiting = None, {pending.reply for pending in requests}
        clock = asyncio.get_running_loop().time
        until_s = clock() + within_s
        try:
            while waiting and found is None and (left_s := until_s - clock()) > 0:
                _, waiting = await asyncio.wait(
                    waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                answered = (pending for pending in requests if pending.reply.done())
                found = next((p for p in answered if p.reply.exception() is None), None)
        finally:
            for pending in requests:
                self._pending.discard(pending)
        return found

    def has_session(self, session: str) -> bool:
        """Return whether a session is open, even if its engine was lost, and no command to close it
        is pending."""
        placement = self.placements.get(session)
        is_open = placement is not None and placement.is_open
        return is_open and not self._pending.has_close(session)

    def mark_paused(self, session: str, *, is_paused: bool) -> None:
        """Record whether the turn of a session is to be paused, for its next attach."""
        for turn in self.turns.of_session(session):
            turn.is_paused = is_paused

    def detach_before_link_3(self, session: str) -> bool:
        """Detach a session from its engine, as if its link was lost, if the engine lacks
        ResumeTurn, which came with link 3: the readers of its turns attach it again. Returns
        whether it was detached."""
        placement = self.placements.get(session)
        if placement is None or placement.connection.link_version >= 3:
            return False
        placement.link_epoch = -1
        for turn in self.turns.of_session(session):
            turn.detach()
        return True

    # ---- dispatch -------------------------------------------------------------------------

    def _list_available(self) -> list[EngineConnection]:
        """List the engines that respond; if none does, those that are connected."""
        up = [connection for connection in self.connections if connection.is_connected]
        return [connection for connection in up if connection.is_responsive] or up

    def _dispatch(self, pending: PendingCommand) -> None:
        command = pending.command
        try:
            connection = pending.connection = self._route(command, pending)
            if connection is None:
                if isinstance(command, CloseSession):
                    self._pending.resolve(command.n, CommandDone(command.n))
                elif not pending.waits:
                    raise _detached(command)
                return
            pending.link_epoch = connection.link_epoch
            self._send(connection, command)
            if isinstance(command, SessionCommand):
                pending.placement = self.placements.get(command.session)
        except EngineError as error:
            # Without its frames: these refer to the pending command, which refers to the error.
            self._pending.resolve(command.n, error.with_traceback(None))

    def _route(self, command: EngineCommand, pending: PendingCommand) -> EngineConnection | None:
        """Return the engine to send a command to, or None if the command must wait for one. Raises
        SessionDetached."""
        up, before = self._list_available(), pending.connection
        if isinstance(command, OpenSession | AttachSession):
            return self._choose_engine(command.session, pending.preferred)
        if not isinstance(command, SessionCommand):
            return before if before in up else next(iter(up), None)
        placement = self.placements.get(command.session)
        if placement is None:
            is_inspected = isinstance(command, GetSessionInfo) and before in up
            return before if is_inspected else next(iter(up), None)
        if isinstance(command, CloseSession) or (
            isinstance(command, GetSessionInfo) and placement.connection.is_connected
        ):
            return placement.connection
        if not placement.is_linked or self._should_migrate(placement):
            raise _detached(command)
        return placement.connection

    def _choose_engine(self, session: str, preferred: str | None) -> EngineConnection | None:
        """Choose the engine on which a session is opened or attached. Returns None if the session
        must wait: for its engine to reconnect, for the flight record of its dead engine, or for any
        engine."""
        placement, up = self.placements.get(session), self._list_available()
        if placement is not None:
            old = placement.connection
            if old in up and not self._should_migrate(placement):
                return old
            if (
                not old.is_connected
                and time.monotonic() - old.disconnected_since_s < RECONNECT_GRACE_S
                and old in self.connections
            ) or self._awaits_record(session, placement):
                return None
        if not up:
            return None
        chosen = choose_engine(
            [PlacementCandidate(each.incarnation, each.load, each.placed_sessions) for each in up],
            preferred,
        )
        connection = up[chosen or 0]  # if all are draining, the engine refuses
        connection.placed_sessions += 1
        return connection

    def _should_migrate(self, placement: Placement) -> bool:
        """Return whether a session should move to another engine, because its engine is draining,
        the session has no turn there, and another engine accepts sessions."""
        has_turn = self.turns.has_session(placement.opened.session) and not placement.must_move
        return (
            placement.connection.load.draining
            and not has_turn
            and any(not other.load.draining for other in self._list_available())
        )

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
        """Close the stale copy of a session, unless its engine was removed."""
        if connection.is_connected or connection in self.connections:
            self._stale_copies.close(connection, session, fence)

    def _send(self, connection: EngineConnection, command: EngineCommand) -> None:
        """Send a command with the fence of its session, and update placements."""
        match command:
            case OpenSession():
                self._place(command, command, connection)
            case AttachSession():
                self._place(command, command.opened, connection)
                command = self._complete_attach(command)
            case CloseSession() if self._close_if_detached(command):
                return
            case FencedCommand():
                placement = self.placements.get(command.session)
                if placement is not None and placement.fence:
                    command = msgspec.structs.replace(command, fence=placement.fence)
                if placement is not None and isinstance(command, ForkSession):
                    opened = msgspec.structs.replace(placement.opened, session=command.child)
                    child = Placement(opened, connection, command.child_fence)
                    self.placements[command.child] = child
            case _:
                pass
        connection.send([command])

    def _place(
        self, command: FencedCommand, opened: OpenSession, connection: EngineConnection
    ) -> None:
        """Place a session on an engine, and close its stale copy on its previous engine."""
        session, previous = opened.session, self.placements.get(opened.session)
        placement = Placement(opened, connection, command.fence)
        self.placements[session] = placement
        if previous is None:
            return
        placement.fence = max(command.fence, previous.fence)
        placement.is_open, placement.length = previous.is_open, previous.length
        if previous.connection is not connection:
            self._close_stale_copy(previous.connection, session, placement.fence)

    def _complete_attach(self, command: AttachSession) -> AttachSession:
        """Add what this client knows when an attach is sent: whether its turn is paused, and
        whether the session is suspected of engine deaths."""
        generate = command.generate
        turn = self.turns.find(command.session, generate.turn) if generate is not None else None
        if turn is not None:
            turn.attach()
        return msgspec.structs.replace(
            command,
            paused=turn is not None and turn.is_paused,
            apart=self.quarantine.isolated_ids(command.session),
        )

    def _close_if_detached(self, command: CloseSession) -> bool:
        """Close a session whose link is lost: here now, and on its engine when it reconnects.
        Returns False if the link is connected."""
        session = command.session
        placement = self.placements.get(session)
        if placement is None or placement.is_linked:
            return False
        self._close_stale_copy(placement.connection, session, placement.fence)
        self.turns.end_session(session, lambda turn: turn.end("cancelled"))
        self._remove_session(session)
        self._pending.resolve(command.n, CommandDone(command.n))
        return True

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
                self._handle_refused(event)
            case SessionExpired():
                if self._is_placed_on(event.session, connection):
                    self._expire(event.session)
            case SessionSuperseded():
                placement = self.placements.get(event.session)
                if placement is None or placement.fence < event.fence:
                    self._handle_superseded(event.session)
            case EngineReady() | ModelLoading() | ModelLoadFailed() | Pong():
                pass

    def _handle_tokens(self, event: TurnTokens) -> None:
        self.quarantine.count_drawn(event.session, len(event.ids))
        if turn := self.turns.find(event.session, event.turn):
            turn.put(event)

    def _handle_turn_ended(self, event: TurnEnded) -> None:
        if placement := self.placements.get(event.session):
            placement.length, placement.last_used_s = event.length, time.monotonic()
        if event.reason in ("stop", "length"):
            self.quarantine.clear(event.session)
        if turn := self.turns.find(event.session, event.turn):
            self.turns.unsubscribe(turn)
            turn.put(event)

    def _has_received_all(self, ended: TurnEnded) -> bool:
        """Return whether all ids of an ended turn were received. If not, this client is about to
        attach the session again; the engine then resends the missing ids and TurnEnded."""
        turn = self.turns.find(ended.session, ended.turn)
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

    def find_least_able(self) -> EngineReady:
        """Return the report of an engine that does not enforce all grammars, else of the first
        one. An engine that was lost counts, because it may return."""
        reports = (connection.ready for connection in self.connections)
        least = next((ready for ready in reports if ready and not ready.enforces_lark), None)
        return least or self.first_ready.result()

    def on_connected(self, connection: EngineConnection) -> None:
        """Close the sessions that moved away from an engine while it was disconnected, then send
        waiting commands."""
        self._stale_copies.close_all(connection, self.placements)
        self._redispatch()

    def on_disconnected(self, connection: EngineConnection) -> None:
        """Detach the sessions of a lost engine: their turns and pending commands fail. Commands to
        open or attach a session wait for an engine. Records the loss for the quarantine."""
        lost = connection.incarnation
        placements = {
            session: placement
            for session, placement in self.placements.items()
            if (placement.connection, placement.incarnation) == (connection, lost)
        }
        running = {turn.session for turn in self.turns if not turn.is_paused}
        busy = (running | self._pending.list_sessions()).intersection(placements)
        self.quarantine.record_loss(lost, placements, busy, time.monotonic())
        for pending in self._pending:
            if pending.connection is connection:
                self._handle_pending_lost(pending)
        error = EngineLost("the engine was lost, and its regular sessions with it")
        for session, placement in placements.items():
            if not placement.opened.streaming:
                self.turns.end_session(session, lambda turn: turn.put(error))
                self._close_stale_copy(connection, session, placement.fence)
                self._remove_session(session)
        for turn in self.turns:
            if (placement := placements.get(turn.session)) is not None:
                turn.detach()
                placement.last_used_s = time.monotonic()
        for session in placements:
            self._report_lost(session)
        event_loop = asyncio.get_running_loop()
        event_loop.call_later(RECONNECT_GRACE_S + 0.01, self._redispatch)
        event_loop.call_later(RECORD_WAIT_S + 0.01, self._redispatch)

    def _handle_pending_lost(self, pending: PendingCommand) -> None:
        """Handle a pending command whose link was lost: fail it, unless it may be sent again."""
        command = pending.command
        if isinstance(command, CloseSession) and self._close_if_detached(command):
            return
        can_wait = not isinstance(command, SessionCommand) or isinstance(
            command, OpenSession | AttachSession
        )
        if not (pending.waits and can_wait):
            self._pending.resolve(command.n, _detached(command))

    def on_given_up(self, connection: EngineConnection) -> None:
        self.remove(connection)
        if not self.connections:
            self.fail(EngineLost("the engine was lost and could not be restarted"))

    def remove(self, connection: EngineConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        self._stale_copies.discard(connection)
        self._redispatch()

    def fail(self, error: EngineLost) -> None:
        """Fail all pending commands and turns, because no engine will be available any more."""
        self.failure = error
        self.failed.set()
        if not self.first_ready.done():
            self.first_ready.cancel()
        for pending in self._pending:
            self._pending.resolve(pending.command.n, error)
        self.turns.fail_all(error)

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
            self._stale_copies.discard_old()
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
        """Expire idle sessions whose engine cannot report the expiry, because their link is lost.
        Their turns, if any, have no reader that would attach the session again."""
        for session, placement in list(self.placements.items()):
            if (
                placement.has_timed_out
                and not placement.is_linked
                and session not in self._pending.list_sessions()
            ):
                self._expire(session)

    def _expire(self, session: str) -> None:
        self.turns.end_session(session, lambda turn: turn.end("cancelled"))
        self._remove_session(session)
        self._report_lost(session)

    def _report_lost(self, session: str) -> None:
        for subscriber in self.subscribers:
            subscriber.on_lost(session)

    # ---- quarantine -----------------------------------------------------------------------

    def _quarantine_session(self, session: str) -> None:
        """Quarantine a session: fail its turn, refuse its pending commands, and remove its copies
        here and on its engine."""
        log.error("session %s: %s", session, QUARANTINED_MESSAGE)
        placement = self.placements.get(session)
        if placement is not None and not placement.is_lost:
            self._close_stale_copy(placement.connection, session, placement.fence)
        self.turns.end_session(session, lambda turn: turn.end("failed", QUARANTINED_MESSAGE))
        self._remove_session(session)
        for pending in self._pending:
            if self._is_quarantined(pending.command):
                self._resolve_quarantined(pending.command)
        self._report_lost(session)

    def _is_quarantined(self, command: EngineCommand) -> bool:
        return isinstance(command, SessionCommand) and command.session in self.quarantine

    def _resolve_quarantined(self, command: EngineCommand) -> None:
        """Reply to a command on a quarantined session: only a close succeeds."""
        is_close = isinstance(command, CloseSession)
        self._pending.resolve(
            command.n,
            CommandDone(command.n)
            if is_close
            else SessionQuarantined(QUARANTINED_MESSAGE, field="session"),
        )

    def _redispatch(self) -> None:
        """Send the commands that wait for an engine or whose link was lost. Those without an
        available engine keep waiting."""
        if self.failure is not None:
            return
        for pending in self._pending:
            if pending.reply.cancelled():
                self._pending.discard(pending)
            elif pending.connection is None or pending.is_lost:
                self._dispatch(pending)

    # ---- replies --------------------------------------------------------------------------

    def _is_placed_on(self, session: str, connection: EngineConnection) -> bool:
        placement = self.placements.get(session)
        return placement is not None and placement.connection is connection

    def _handle_done(self, done: CommandDone, connection: EngineConnection) -> None:
        """Apply a command that the engine has executed, even if its caller no longer waits."""
        pending = self._pending.find(done.n)
        if pending is None or pending.connection is not connection:
            return
        if isinstance(pending.command, SessionCommand):
            self._update_placement(pending.command, pending.placement, done)
        self._pending.resolve(done.n, done)

    def _update_placement(
        self, command: SessionCommand, placement: Placement | None, done: CommandDone
    ) -> None:
        """Apply a command to the placement with which it was sent, unless the session was opened,
        attached or removed since."""
        if placement is None or self.placements.get(command.session) is not placement:
            return
        placement.last_used_s = time.monotonic()
        if placement.is_open and isinstance(command, OpenSession | AttachSession):
            self._end_replaced_turns(command)
        match command:
            case CloseSession():
                self._remove_session(command.session)
            case ForkSession(child=child):
                if (child_placement := self.placements.get(child)) is not None:
                    child_placement.is_open, child_placement.length = True, done.length
            case GetSessionInfo():
                pass
            case _:
                placement.is_open, placement.length = True, done.length
        if isinstance(command, Generate) and (
            turn := self.turns.find(command.session, command.turn)
        ):
            turn.prompt_tokens = done.length

    def _end_replaced_turns(self, command: OpenSession | AttachSession) -> None:
        """End the streams of turns that the engine has cancelled, without a TurnEnded, because the
        session was opened or attached again without them."""
        generate = command.generate if isinstance(command, AttachSession) else None
        for turn in self.turns.of_session(command.session):
            if turn.has_begun and (generate is None or turn.id != generate.turn):
                self.turns.unsubscribe(turn)
                turn.end("cancelled")

    def _handle_refused(self, refused: CommandRefused) -> None:
        pending = self._pending.find(refused.n)
        if pending is not None and isinstance(pending.command, SessionCommand):
            self._apply_refusal(pending.command, pending.placement, refused.code)
            if refused.code == Busy.code and self._move_from_busy(pending):
                return
        kind = ERRORS_BY_CODE.get(refused.code, EngineError)
        self._pending.resolve(refused.n, kind(refused.message, field=refused.field))

    def _move_from_busy(self, pending: PendingCommand) -> bool:
        """Take a session to another engine, if there is one, when its engine refuses a turn or the
        session as busy. The engine may have begun to drain since it last reported its load, so it
        counts as draining until its next report. Returns False if the refusal stands."""
        command, busy = pending.command, pending.connection
        if busy is None or not isinstance(command, OpenSession | AttachSession | Generate):
            return False
        if not any(each is not busy and not each.load.draining for each in self._list_available()):
            return False
        placement = self.placements.get(command.session)
        if isinstance(command, Generate) and (placement is None or not placement.opened.streaming):
            return False
        busy.load = msgspec.structs.replace(busy.load, draining=True)
        if placement is not None and placement.connection is busy:
            placement.must_move, placement.link_epoch = True, -1
        if isinstance(command, Generate):
            self._pending.resolve(command.n, _detached(command))
        else:
            self._dispatch(pending)
        return True

    def _apply_refusal(
        self, command: SessionCommand, placement: Placement | None, code: str
    ) -> None:
        """Remove the placement of a session that its engine has refused to open, or does not have.
        A session that was open before may be attached again."""
        if isinstance(command, ForkSession):
            child = self.placements.get(command.child)
            if child is not None and not child.is_open and child.fence == command.child_fence:
                del self.placements[command.child]
        if (
            placement is None
            or self.placements.get(command.session) is not placement
            or not placement.is_linked
        ):
            return
        is_opening = isinstance(command, OpenSession | AttachSession)
        if is_opening and placement.is_open:
            placement.link_epoch = -1
        elif is_opening or code == UnknownEngineSession.code:
            del self.placements[command.session]

    def _remove_session(self, session: str) -> None:
        self.placements.pop(session, None)
        self.quarantine.clear(session)

    def _handle_superseded(self, session: str) -> None:
        """Remove a session that another client has taken over; its turns end with StaleEngineFence.
        Pending commands on it are refused by the engine."""
        self._remove_session(session)
        for subscriber in self.subscribers:
            subscriber.on_superseded(session)
        taken_over = StaleEngineFence(f"session {session} was taken over")
        self.turns.end_session(session, lambda turn: turn.put(taken_over))


def _detached(command: EngineCommand) -> SessionDetached:
    session = command.session if isinstance(command, SessionCommand) else ""
    return SessionDetached(f"session {session} has no engine: it must be attached again")

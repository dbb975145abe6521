"""Routing: which engine each command goes to, and what happens when an engine goes and comes.

A session is where it was placed. If that engine is lost it may come back within RETURN_S, by the
same link's successor, KV and all; then the session goes to another one that is up, or waits for
the first that is. Wherever it goes next it is attached first, from its log. A session that makes
engines die is found by how they died, and put in quarantine.
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
"""How long the sessions of a lost engine wait for it while others are up."""
RECORD_WAIT_S = 30.0
"""How long a suspect waits for the successor of a dead engine, which tells whether the suspect was
alone in its last step."""
LOCATE_TIMEOUT_S = 1.0
"""How long engines are asked for a session that is being attached."""
QUARANTINED_MESSAGE = (
    f"engine processes died at least {QUARANTINE_DEATHS} times while they computed this session, "
    "the last time with no other session in the step; it can only be closed"
)
STALE_COPY_S = 900.0
"""An engine that was away for so long has ended by itself what nobody wants there."""


class Placement:
    """Where a session is."""

    __slots__ = ("connection", "fence", "incarnation", "link_epoch")

    def __init__(self, peer: EngineConnection, fence: int) -> None:
        self.fence = fence
        self.bind(peer)

    def bind(self, peer: EngineConnection) -> None:
        self.connection = peer
        self.link_epoch = peer.link_epoch
        """The link on which the engine was last told of it."""
        self.incarnation = _get_incarnation(peer)

    @property
    def is_linked(self) -> bool:
        """Whether that link is still there."""
        return self.connection.is_connected and self.link_epoch == self.connection.link_epoch

    @property
    def is_lost(self) -> bool:
        """Whether the engine that has it is not there, or not any more."""
        return not self.connection.is_connected or self.incarnation != _get_incarnation(
            self.connection
        )


class PendingCommand:
    """A command that is not answered. `peer` is None while nobody is there to take it."""

    __slots__ = ("command", "connection", "link_epoch", "placement", "reply")

    def __init__(self, command: EngineCommand) -> None:
        self.command = command
        self.reply: asyncio.Future[CommandDone] = asyncio.get_running_loop().create_future()
        self.connection: EngineConnection | None = None
        self.placement: Placement | None = None
        """Where its session was when it was sent."""
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
        """There will be no engine any more."""
        self.failed = asyncio.Event()
        self.on_expired: Callable[[str], None] = lambda session: None
        self.on_superseded: Callable[[str], None] = lambda session: None
        self._placements: dict[str, Placement] = {}
        self._stale_copies: dict[EngineConnection, dict[str, int]] = {}
        """Sessions, and their fences, that have left an engine which could not be told."""
        self._preferred: dict[str, str] = {}
        """Incarnations that are said to have sessions that are being attached."""
        self._pending: dict[int, PendingCommand] = {}
        self._last_number = 0

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    # ---- commands -------------------------------------------------------------------------

    async def request(self, command: EngineCommand) -> CommandDone:
        """Raises what the engine refuses with, EngineLost if there will be none."""
        return await self.submit(command).reply

    def submit(
        self, command: EngineCommand, peer: EngineConnection | None = None
    ) -> PendingCommand:
        """Sends it, or has it wait for an engine; to `peer` if it is on no session."""
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
        pending.connection = peer
        self._dispatch(pending)
        return pending

    async def request_all(self, make_command: Callable[[int], EngineCommand]) -> list[CommandDone]:
        """Of every engine that is up; while none is, of the first that will be."""
        asked: list[PendingCommand] = []
        for peer in self._list_available() or [None]:
            asked.append(self.submit(make_command(self.next_number()), peer))
        return list(await asyncio.gather(*(pending.reply for pending in asked)))

    def subscribe(self, turn: TurnStream) -> None:
        """What the engine says of this turn goes to it. One that was there before hears no more."""
        key = (turn.session, turn.id)
        if before := self.turns.get(key):
            before.put(StaleEngineFence(f"session {turn.session} was taken over"))
        self.turns[key] = turn

    def unsubscribe(self, turn: TurnStream) -> None:
        if self.turns.get((turn.session, turn.id)) is turn:
            del self.turns[turn.session, turn.id]

    async def attach(self, command: AttachSession, preferred: str | None) -> CommandDone:
        """`wanted`: the incarnation that may have its KV. It is ended wherever else it may still
        be: who had it before may have had engines that this front does not reach."""
        session, began = command.session, command.session not in self._placements
        if preferred is not None:
            self._preferred[session] = preferred
        try:
            done = await self.request(command)
        finally:
            self._preferred.pop(session, None)
        for peer in self.connections if began else ():
            if not self._is_placed_on(session, peer):
                self._close_stale_copy(peer, session, command.fence)
        return done

    async def locate(self, session: str) -> str | None:
        """The incarnation that has a session, whoever holds it. None: none that answers soon, or
        there is no choice."""
        up = [peer for peer in self.connections if peer.is_responsive]
        if len(up) < 2:
            return None
        found = await self._first_success(
            [self.submit(LocateSession(self.next_number(), session), peer) for peer in up]
        )
        if found is None or found.connection is None or found.connection.ready is None:
            return None
        return found.connection.ready.incarnation

    async def inspect(self, session: str) -> SessionInfo | None:
        """How a session is, whoever holds it. None: no engine that answers soon has it."""
        up = [peer for peer in self.connections if peer.is_responsive]
        if not up or self.failure is not None:
            return None
        found = await self._first_success(
            [self.submit(GetSessionInfo(self.next_number(), session), peer) for peer in up]
        )
        return None if found is None else found.reply.result().info

    async def _first_success(self, asked: list[PendingCommand]) -> PendingCommand | None:
        """Of those that are answered soon, and not refused."""
        await asyncio.wait([pending.reply for pending in asked], timeout=LOCATE_TIMEOUT_S)
        for pending in asked:
            self._pending.pop(pending.command.n, None)
        answered = (pending for pending in asked if pending.reply.done())
        return next((one for one in answered if one.reply.exception() is None), None)

    def has_session(self, session: str) -> bool:
        """Whether it is open, on an engine or not, and not about to be closed."""
        return self.replicas.has_session(session) and not any(
            isinstance(pending.command, CloseSession) and pending.command.session == session
            for pending in self._pending.values()
        )

    def count_without_engine(self) -> int:
        """Sessions that wait to be used again: then an engine is told of them."""
        return sum(
            place.is_lost and self.replicas.has_session(s) for s, place in self._placements.items()
        )

    def set_fence(self, session: str, fence: int) -> None:
        """Commands on it carry this fence from now on."""
        if place := self._placements.get(session):
            place.fence = fence

    def fence_of(self, session: str) -> int:
        place = self._placements.get(session)
        return place.fence if place else 0

    def incarnation_of(self, session: str) -> str | None:
        """Of the engine that has it."""
        place = self._placements.get(session)
        return place.connection.ready.incarnation if place and place.connection.ready else None

    # ---- where it goes --------------------------------------------------------------------

    def _list_available(self) -> list[EngineConnection]:
        """Engines that answer; if none does, those whose link is there."""
        up = [peer for peer in self.connections if peer.is_connected]
        return [peer for peer in up if peer.is_responsive] or up

    def _dispatch(self, pending: PendingCommand) -> None:
        command = pending.command
        peer = self._route(command, pending.connection)
        pending.connection = peer
        if peer is None:
            return
        pending.link_epoch = peer.link_epoch
        try:
            self._send(peer, command)
            if isinstance(command, CloseSession):
                pending.placement = self._placements.get(command.session)
        except EngineError as error:
            self._resolve(command.n, error)

    def _route(
        self, command: EngineCommand, before: EngineConnection | None
    ) -> EngineConnection | None:
        match command:
            case OpenSession() | AttachSession():
                place = self._placements.get(command.session)
                if place is not None and self._awaits_record(command.session, place):
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
        """An engine for a session that is on none."""
        up = self._list_available()
        candidates = [
            PlacementCandidate(_get_incarnation(peer), peer.load, peer.placed_sessions)
            for peer in up
        ]
        chosen = choose_engine(candidates, preferred)
        if chosen is None:
            if not up:
                return None
            chosen = 0  # it will say itself that it is stopping
        up[chosen].placed_sessions += 1
        return up[chosen]

    def _ensure_attached(self, session: str) -> EngineConnection | None:
        """The engine that has the session, and knows it as it is; it is moved there if need be."""
        place = self._placements.get(session)
        if place is None:
            return next(iter(self._list_available()), None)
        if not place.connection.is_connected or self._should_migrate(session, place.connection):
            place = self._relocate(session, place)
        if place is None:
            return None
        if place.link_epoch != place.connection.link_epoch:
            apart = self.quarantine.isolated_ids(session)
            attach = self.replicas.build_attach(
                session, self.turns, fence=place.fence, isolated_ids=apart
            )
            place.bind(place.connection)
            if attach is not None:
                place.connection.send([attach])
        return place.connection

    def _should_migrate(self, session: str, peer: EngineConnection) -> bool:
        """Its engine is about to stop, it has no turn there, and there is another."""
        return (
            peer.load.draining
            and not self.replicas.has_turn(session)
            and any(not other.load.draining for other in self._list_available())
        )

    def _relocate(self, session: str, place: Placement) -> Placement | None:
        old = place.connection
        if (
            not old.is_connected
            and time.monotonic() - old.disconnected_since_s < RECONNECT_GRACE_S
            and old in self.connections
        ):
            return None
        if self._awaits_record(session, place):
            return None
        peer = self._choose_connection()
        if peer is None:
            return None
        if peer is not old:
            self._close_stale_copy(old, session, place.fence)
        place.connection, place.link_epoch = peer, -1
        return place

    def _awaits_record(self, session: str, place: Placement) -> bool:
        """Whether the session waits for the record of the engine that it was on."""
        old = place.connection
        if (
            old.is_connected
            or old not in self.connections
            or time.monotonic() - old.disconnected_since_s >= RECORD_WAIT_S
        ):
            return False
        return self.quarantine.must_wait_for(session, place.incarnation)

    def _close_stale_copy(self, peer: EngineConnection, session: str, fence: int) -> None:
        """Nobody wants it there any more, if it still is. Said now, or when `peer` is up."""
        if peer.is_connected:
            peer.send([CloseSession(0, session, fence=fence)])
        else:
            self._stale_copies.setdefault(peer, {})[session] = fence

    def _send(self, peer: EngineConnection, command: EngineCommand) -> None:
        """With the fence of its session."""
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
                before = self._placements.get(command.session)
                fence = max(command.fence, before.fence if before else 0)
                self._placements[command.session] = Placement(peer, fence)
                if apart := self.quarantine.isolated_ids(command.session):
                    command = msgspec.structs.replace(command, apart=apart)
            case _:
                command = self.replicas.translate(command)
                place = self._placements.get(command.session)
                if place is not None and place.fence:
                    command = msgspec.structs.replace(command, fence=place.fence)
                if isinstance(command, ForkSession):
                    self._placements[command.child] = Placement(peer, command.child_fence)
        peer.send([command])

    # ---- what peers do --------------------------------------------------------------------

    def on_events(self, peer: EngineConnection, events: list[EngineEvent]) -> None:
        for event in events:
            self._handle_event(peer, event)

    def _handle_event(self, peer: EngineConnection, event: EngineEvent) -> None:
        match event:
            case TurnTokens():
                if self._is_placed_on(event.session, peer):
                    self.replicas.apply_tokens(event)
                    self.quarantine.count_drawn(event.session, len(event.ids))
                    if turn := self.turns.get((event.session, event.turn)):
                        turn.put(event)
            case TurnEnded():
                if self._is_placed_on(event.session, peer) and self._has_received_all(event):
                    self.replicas.apply_turn_ended(event)
                    if event.reason in ("stop", "length"):
                        self.quarantine.clear(event.session)
                    if turn := self.turns.pop((event.session, event.turn), None):
                        turn.put(event)
            case CommandDone():
                self._handle_done(event, peer)
            case CommandRefused():
                self._handle_refused(event, peer)
            case SessionExpired():
                if self._is_placed_on(event.session, peer):
                    self._remove_session(event.session)
                    self.on_expired(event.session)
            case SessionSuperseded():
                if self.fence_of(event.session) < event.fence:
                    self._handle_superseded(event.session)
            case EngineReady() | ModelLoading() | ModelLoadFailed() | Pong():
                pass

    def _has_received_all(self, ended: TurnEnded) -> bool:
        """Whether all that the turn has said has come. If not, we are just taking it over from
        another front: then both are told again."""
        turn = self.turns.get((ended.session, ended.turn))
        return turn is None or turn.received == ended.output_tokens

    def on_ready(self, ready: EngineReady) -> None:
        """All engines of a front serve the same model: its sessions move between them."""
        if not self.first_ready.done():
            self.first_ready.set_result(ready)
        first = self.first_ready.result()
        for name in ("model", "vocab_size", "max_model_len", "digest"):
            mine, others = getattr(ready, name), getattr(first, name)
            if mine != others:
                raise LinkRefused(f"its {name} is {mine}, that of the others {others}")
        self.quarantine.record_reconnect(ready.incarnation)
        if ready.predecessor is not None:
            session = self.quarantine.attribute_crash(ready.predecessor, time.monotonic())
            if session is not None:
                self._quarantine_session(session)

    def on_connected(self, peer: EngineConnection) -> None:
        """Sessions that have left it while it was away may still be there; nobody wants them."""
        for session, fence in self._stale_copies.pop(peer, {}).items():
            if not self._is_placed_on(session, peer):
                peer.send([CloseSession(0, session, fence=fence)])
        self._redispatch()

    def on_disconnected(self, peer: EngineConnection) -> None:
        """What was under way waits for it, or goes to another."""
        for turn in self.turns.values():
            place = self._placements.get(turn.session)
            if place is not None and place.connection is peer:
                turn.interrupt()
        here, lost = asyncio.get_running_loop(), _get_incarnation(peer)
        sessions = [
            s for s, p in self._placements.items() if (p.connection, p.incarnation) == (peer, lost)
        ]
        at_work = {*self.replicas.list_generating(), *self._list_awaited_sessions()}.intersection(
            sessions
        )
        self.quarantine.record_loss(lost, sessions, at_work, time.monotonic())
        here.call_later(RECONNECT_GRACE_S + 0.01, self._redispatch)
        here.call_later(RECORD_WAIT_S + 0.01, self._redispatch)

    def on_given_up(self, peer: EngineConnection) -> None:
        self.remove(peer)
        if not self.connections:
            self.fail(EngineLost("the engine went away and did not come back"))

    def remove(self, peer: EngineConnection) -> None:
        if peer in self.connections:
            self.connections.remove(peer)
        self._stale_copies.pop(peer, None)
        self._redispatch()

    def fail(self, error: EngineLost) -> None:
        """There will be no engine any more."""
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
        """Asks every engine every PING_S whether it is there, and looks for sessions whose time is
        up. Sessions of one that does not answer go to others, if there are any."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(PING_INTERVAL_S)
            late = time.monotonic() - before_s > PING_INTERVAL_S + UNRESPONSIVE_AFTER_S / 2
            self._expire_sessions()
            for peer in self.connections:
                peer.ping(is_late=late)
                if (
                    not peer.is_connected
                    and time.monotonic() - peer.disconnected_since_s > STALE_COPY_S
                ):
                    self._stale_copies.pop(peer, None)
            silent = [
                peer for peer in self.connections if peer.is_connected and not peer.is_responsive
            ]
            if silent and len(silent) < sum(peer.is_connected for peer in self.connections):
                for peer in silent:
                    peer.disconnect("it does not answer, and others do")

    def _expire_sessions(self) -> None:
        """Ends the sessions whose time is up and whose engine cannot: it is gone, or would not be
        heard."""
        for session in self.replicas.list_timed_out():
            place = self._placements.get(session)
            if place is None or place.is_linked or session in self._list_awaited_sessions():
                continue
            self._remove_session(session)
            self.on_expired(session)

    def _list_awaited_sessions(self) -> set[str]:
        """Sessions on which a command waits for its answer."""
        commands = (pending.command for pending in self._pending.values())
        return {command.session for command in commands if isinstance(command, SessionCommand)}

    # ---- quarantine -----------------------------------------------------------------------

    def _quarantine_session(self, session: str) -> None:
        """Quarantine a session: fail its turn, refuse its pending commands, and send it to no
        engine."""
        log.error("session %s: %s", session, QUARANTINED_MESSAGE)
        place = self._placements.get(session)
        if place is not None and not place.is_lost:
            self._close_stale_copy(place.connection, session, place.fence)
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
        closes = isinstance(command, CloseSession)
        self._resolve(
            command.n,
            CommandDone(command.n)
            if closes
            else SessionQuarantined(QUARANTINED_MESSAGE, field="session"),
        )

    def _redispatch(self) -> None:
        """Turns and commands whose engine is not there any more, wherever they can now."""
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

    # ---- answers --------------------------------------------------------------------------

    def _is_placed_on(self, session: str, peer: EngineConnection) -> bool:
        place = self._placements.get(session)
        return place is not None and place.connection is peer

    def _handle_done(self, done: CommandDone, peer: EngineConnection) -> None:
        """Also of a command nobody waits for any more: it has taken effect."""
        pending = self._pending.get(done.n)
        if pending is None or pending.connection is not peer:
            return
        assert peer.ready is not None
        self.replicas.apply_command(pending.command, done, peer.ready.max_model_len)
        if isinstance(pending.command, CloseSession):
            session = pending.command.session
            if (
                self._placements.get(session) is pending.placement
            ):  # else it was taken up again since
                self._placements.pop(session, None)
                self.quarantine.clear(session)
        self._resolve(done.n, done)

    def _handle_refused(self, refused: CommandRefused, peer: EngineConnection) -> None:
        if pending := self._pending.get(refused.n):
            if refused.code == UnknownEngineSession.code:
                self._remove_unknown(pending.command, peer)
            match pending.command:
                case (
                    OpenSession(session=made)
                    | AttachSession(session=made)
                    | ForkSession(child=made)
                ):
                    place = self._placements.get(made)
                    ours = place is not None and place.fence == pending.command.fence
                    if ours and not self.replicas.has_session(made):
                        del self._placements[made]
                case _:
                    pass
        kind = ERRORS_BY_CODE.get(refused.code, EngineError)
        self._resolve(refused.n, kind(refused.message, field=refused.field))

    def _remove_unknown(self, command: EngineCommand, peer: EngineConnection) -> None:
        """Its engine says that there is no such session: so it may be opened again."""
        if isinstance(command, SessionCommand) and self._is_placed_on(command.session, peer):
            self.replicas.remove(command.session)

    def _resolve(self, n: int, answer: CommandDone | EngineError) -> None:
        pending = self._pending.pop(n, None)
        if pending is None or pending.reply.done():
            return
        if isinstance(answer, EngineError):
            pending.reply.set_exception(answer)
        else:
            pending.reply.set_result(answer)

    def _remove_session(self, session: str) -> None:
        self.replicas.remove(session)
        self._placements.pop(session, None)
        self.quarantine.clear(session)

    def _handle_superseded(self, session: str) -> None:
        """Another front has it. What was asked of it is refused by the engine itself."""
        self._remove_session(session)
        self.on_superseded(session)
        for key in [key for key in self.turns if key[0] == session]:
            self.turns.pop(key).put(StaleEngineFence(f"session {session} was taken over"))


def _get_incarnation(peer: EngineConnection) -> str:
    return peer.ready.incarnation if peer.ready else ""


def _mark_retrieved(reply: "asyncio.Future[CommandDone]") -> None:
    """Nobody need wait for an answer."""
    if not reply.cancelled():
        reply.exception()

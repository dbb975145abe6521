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

from continuo.engine.client.connection import PING_S, SILENT_S, Peer
from continuo.engine.client.placement import Candidate, choose
from continuo.engine.client.quarantine import QUARANTINE_DEATHS, Quarantine
from continuo.engine.client.replica import Mirror
from continuo.engine.client.turn_stream import Turn
from continuo.engine.errors import (
    BY_CODE,
    EngineError,
    EngineLost,
    LinkRefused,
    SessionQuarantined,
    StaleFence,
    UnknownSession,
)
from continuo.engine.wire.messages import (
    AnyCommand,
    AnyEvent,
    Attach,
    Close,
    Done,
    Drain,
    Expired,
    Files,
    Fork,
    Info,
    ListSessions,
    LoadFailed,
    Loading,
    Locate,
    Open,
    Ping,
    Pong,
    Ready,
    Refused,
    SessionCommand,
    SessionInfo,
    Stats,
    Superseded,
    Tokens,
    TurnEnded,
)

log = logging.getLogger(__name__)

RETURN_S = 0.5
"""How long the sessions of a lost engine wait for it while others are up."""
RECORD_S = 30.0
"""How long a suspect waits for the successor of a dead engine, which tells whether the suspect was
alone in its last step."""
LOCATE_S = 1.0
"""How long engines are asked for a session that is being attached."""
QUARANTINED = (
    f"engine processes died at least {QUARANTINE_DEATHS} times while they computed this session, "
    "the last time with no other session in the step; it can only be closed"
)
STRAYS_S = 900.0
"""An engine that was away for so long has ended by itself what nobody wants there."""


class Place:
    """Where a session is."""

    __slots__ = ("fence", "incarnation", "life", "peer")

    def __init__(self, peer: Peer, fence: int) -> None:
        self.fence = fence
        self.told(peer)

    def told(self, peer: Peer) -> None:
        self.peer = peer
        self.life = peer.life
        """The link on which the engine was last told of it."""
        self.incarnation = _incarnation(peer)

    @property
    def linked(self) -> bool:
        """Whether that link is still there."""
        return self.peer.up and self.life == self.peer.life

    @property
    def lost(self) -> bool:
        """Whether the engine that has it is not there, or not any more."""
        return not self.peer.up or self.incarnation != _incarnation(self.peer)


class Pending:
    """A command that is not answered. `peer` is None while nobody is there to take it."""

    __slots__ = ("command", "life", "peer", "place", "reply")

    def __init__(self, command: AnyCommand) -> None:
        self.command = command
        self.reply: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self.peer: Peer | None = None
        self.place: Place | None = None
        """Where its session was when it was sent."""
        self.life = 0


class Routing:
    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.peers: list[Peer] = []
        self.turns: dict[tuple[str, str], Turn] = {}
        self.mirror = Mirror()
        self.quarantine = Quarantine()
        self.first_ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.gone: EngineLost | None = None
        """There will be no engine any more."""
        self.lost = asyncio.Event()
        self.on_expired: Callable[[str], None] = lambda session: None
        self.on_superseded: Callable[[str], None] = lambda session: None
        self._places: dict[str, Place] = {}
        self._strays: dict[Peer, dict[str, int]] = {}
        """Sessions, and their fences, that have left an engine which could not be told."""
        self._wanted: dict[str, str] = {}
        """Incarnations that are said to have sessions that are being attached."""
        self._pending: dict[int, Pending] = {}
        self._n = 0

    def next(self) -> int:
        self._n += 1
        return self._n

    # ---- commands -------------------------------------------------------------------------

    async def ask(self, command: AnyCommand) -> Done:
        """Raises what the engine refuses with, EngineLost if there will be none."""
        return await self.start(command).reply

    def start(self, command: AnyCommand, peer: Peer | None = None) -> Pending:
        """Sends it, or has it wait for an engine; to `peer` if it is on no session."""
        pending = Pending(command)
        pending.reply.add_done_callback(_seen)
        if self.gone is not None:
            pending.reply.set_exception(self.gone)
            return pending
        self._pending[command.n] = pending
        if isinstance(command, Open):
            self.quarantine.lift(command.session)
        if self._is_quarantined(command):
            self._answer_quarantined(command)
            return pending
        pending.peer = peer
        self._dispatch(pending)
        return pending

    async def ask_all(self, make: Callable[[int], AnyCommand]) -> list[Done]:
        """Of every engine that is up; while none is, of the first that will be."""
        asked: list[Pending] = []
        for peer in self._up() or [None]:
            asked.append(self.start(make(self.next()), peer))
        return list(await asyncio.gather(*(pending.reply for pending in asked)))

    def listen(self, turn: Turn) -> None:
        """What the engine says of this turn goes to it. One that was there before hears no more."""
        key = (turn.session, turn.id)
        if before := self.turns.get(key):
            before.put(StaleFence(f"session {turn.session} was taken over"))
        self.turns[key] = turn

    def ignore(self, turn: Turn) -> None:
        if self.turns.get((turn.session, turn.id)) is turn:
            del self.turns[turn.session, turn.id]

    async def attach(self, command: Attach, wanted: str | None) -> Done:
        """`wanted`: the incarnation that may have its KV. It is ended wherever else it may still
        be: who had it before may have had engines that this front does not reach."""
        session, began = command.session, command.session not in self._places
        if wanted is not None:
            self._wanted[session] = wanted
        try:
            done = await self.ask(command)
        finally:
            self._wanted.pop(session, None)
        for peer in self.peers if began else ():
            if not self._is_at(session, peer):
                self._end_at(peer, session, command.fence)
        return done

    async def locate(self, session: str) -> str | None:
        """The incarnation that has a session, whoever holds it. None: none that answers soon, or
        there is no choice."""
        up = [peer for peer in self.peers if peer.answers]
        if len(up) < 2:
            return None
        found = await self._first([self.start(Locate(self.next(), session), peer) for peer in up])
        if found is None or found.peer is None or found.peer.ready is None:
            return None
        return found.peer.ready.incarnation

    async def look(self, session: str) -> SessionInfo | None:
        """How a session is, whoever holds it. None: no engine that answers soon has it."""
        up = [peer for peer in self.peers if peer.answers]
        if not up or self.gone is not None:
            return None
        found = await self._first([self.start(Info(self.next(), session), peer) for peer in up])
        return None if found is None else found.reply.result().info

    async def _first(self, asked: list[Pending]) -> Pending | None:
        """Of those that are answered soon, and not refused."""
        await asyncio.wait([pending.reply for pending in asked], timeout=LOCATE_S)
        for pending in asked:
            self._pending.pop(pending.command.n, None)
        answered = (pending for pending in asked if pending.reply.done())
        return next((one for one in answered if one.reply.exception() is None), None)

    def has(self, session: str) -> bool:
        """Whether it is open, on an engine or not, and not about to be closed."""
        return self.mirror.knows(session) and not any(
            isinstance(pending.command, Close) and pending.command.session == session
            for pending in self._pending.values()
        )

    def without_engine(self) -> int:
        """Sessions that wait to be used again: then an engine is told of them."""
        return sum(place.lost and self.mirror.knows(s) for s, place in self._places.items())

    def fence(self, session: str, fence: int) -> None:
        """Commands on it carry this fence from now on."""
        if place := self._places.get(session):
            place.fence = fence

    def fence_of(self, session: str) -> int:
        place = self._places.get(session)
        return place.fence if place else 0

    def incarnation(self, session: str) -> str | None:
        """Of the engine that has it."""
        place = self._places.get(session)
        return place.peer.ready.incarnation if place and place.peer.ready else None

    # ---- where it goes --------------------------------------------------------------------

    def _up(self) -> list[Peer]:
        """Engines that answer; if none does, those whose link is there."""
        up = [peer for peer in self.peers if peer.up]
        return [peer for peer in up if peer.answers] or up

    def _dispatch(self, pending: Pending) -> None:
        command = pending.command
        peer = self._peer_for(command, pending.peer)
        pending.peer = peer
        if peer is None:
            return
        pending.life = peer.life
        try:
            self._send(peer, command)
            if isinstance(command, Close):
                pending.place = self._places.get(command.session)
        except EngineError as error:
            self._answer(command.n, error)

    def _peer_for(self, command: AnyCommand, before: Peer | None) -> Peer | None:
        match command:
            case Open() | Attach():
                place = self._places.get(command.session)
                if place is not None and self._awaits_record(command.session, place):
                    return None
                return self._choose(self._wanted.get(command.session))
            case ListSessions() | Stats() | Drain() | Ping() | Locate() | Files():
                up = self._up()
                return before if before in up else next(iter(up), None)
            case Info() if before in self._up() and command.session not in self._places:
                return before
            case _:
                return self._whereabouts(command.session)

    def _choose(self, wanted: str | None = None) -> Peer | None:
        """An engine for a session that is on none."""
        up = self._up()
        candidates = [Candidate(_incarnation(peer), peer.load, peer.placed) for peer in up]
        chosen = choose(candidates, wanted)
        if chosen is None:
            if not up:
                return None
            chosen = 0  # it will say itself that it is stopping
        up[chosen].placed += 1
        return up[chosen]

    def _whereabouts(self, session: str) -> Peer | None:
        """The engine that has the session, and knows it as it is; it is moved there if need be."""
        place = self._places.get(session)
        if place is None:
            return next(iter(self._up()), None)
        if not place.peer.up or self._should_leave(session, place.peer):
            place = self._moved(session, place)
        if place is None:
            return None
        if place.life != place.peer.life:
            apart = self.quarantine.ids_apart(session)
            attach = self.mirror.attaching(session, self.turns, fence=place.fence, apart=apart)
            place.told(place.peer)
            if attach is not None:
                place.peer.send([attach])
        return place.peer

    def _should_leave(self, session: str, peer: Peer) -> bool:
        """Its engine is about to stop, it has no turn there, and there is another."""
        return (
            peer.load.draining
            and not self.mirror.has_turn(session)
            and any(not other.load.draining for other in self._up())
        )

    def _moved(self, session: str, place: Place) -> Place | None:
        old = place.peer
        if not old.up and time.monotonic() - old.down_s < RETURN_S and old in self.peers:
            return None
        if self._awaits_record(session, place):
            return None
        peer = self._choose()
        if peer is None:
            return None
        if peer is not old:
            self._end_at(old, session, place.fence)
        place.peer, place.life = peer, -1
        return place

    def _awaits_record(self, session: str, place: Place) -> bool:
        """Whether the session waits for the record of the engine that it was on."""
        old = place.peer
        if old.up or old not in self.peers or time.monotonic() - old.down_s >= RECORD_S:
            return False
        return self.quarantine.awaits(session, place.incarnation)

    def _end_at(self, peer: Peer, session: str, fence: int) -> None:
        """Nobody wants it there any more, if it still is. Said now, or when `peer` is up."""
        if peer.up:
            peer.send([Close(0, session, fence=fence)])
        else:
            self._strays.setdefault(peer, {})[session] = fence

    def _send(self, peer: Peer, command: AnyCommand) -> None:
        """With the fence of its session."""
        match command:
            case ListSessions() | Stats() | Drain() | Ping() | Locate() | Files():
                pass
            case Open() | Attach():
                before = self._places.get(command.session)
                fence = max(command.fence, before.fence if before else 0)
                self._places[command.session] = Place(peer, fence)
                if apart := self.quarantine.ids_apart(command.session):
                    command = msgspec.structs.replace(command, apart=apart)
            case _:
                command = self.mirror.translated(command)
                place = self._places.get(command.session)
                if place is not None and place.fence:
                    command = msgspec.structs.replace(command, fence=place.fence)
                if isinstance(command, Fork):
                    self._places[command.child] = Place(peer, command.child_fence)
        peer.send([command])

    # ---- what peers do --------------------------------------------------------------------

    def on_events(self, peer: Peer, events: list[AnyEvent]) -> None:
        for event in events:
            self._hear(peer, event)

    def _hear(self, peer: Peer, event: AnyEvent) -> None:
        match event:
            case Tokens():
                if self._is_at(event.session, peer):
                    self.mirror.tokens(event)
                    self.quarantine.drew(event.session, len(event.ids))
                    if turn := self.turns.get((event.session, event.turn)):
                        turn.put(event)
            case TurnEnded():
                if self._is_at(event.session, peer) and self._has_heard(event):
                    self.mirror.ended(event)
                    if event.reason in ("stop", "length"):
                        self.quarantine.clear(event.session)
                    if turn := self.turns.pop((event.session, event.turn), None):
                        turn.put(event)
            case Done():
                self._done(event, peer)
            case Refused():
                self._refused(event, peer)
            case Expired():
                if self._is_at(event.session, peer):
                    self._forget(event.session)
                    self.on_expired(event.session)
            case Superseded():
                if self.fence_of(event.session) < event.fence:
                    self._superseded(event.session)
            case Ready() | Loading() | LoadFailed() | Pong():
                pass

    def _has_heard(self, ended: TurnEnded) -> bool:
        """Whether all that the turn has said has come. If not, we are just taking it over from
        another front: then both are told again."""
        turn = self.turns.get((ended.session, ended.turn))
        return turn is None or turn.said == ended.output_tokens

    def on_ready(self, ready: Ready) -> None:
        """All engines of a front serve the same model: its sessions move between them."""
        if not self.first_ready.done():
            self.first_ready.set_result(ready)
        first = self.first_ready.result()
        for name in ("model", "vocab_size", "max_model_len", "digest"):
            mine, others = getattr(ready, name), getattr(first, name)
            if mine != others:
                raise LinkRefused(f"its {name} is {mine}, that of the others {others}")
        self.quarantine.found(ready.incarnation)
        if ready.predecessor is not None:
            session = self.quarantine.explained(ready.predecessor, time.monotonic())
            if session is not None:
                self._put_in_quarantine(session)

    def on_up(self, peer: Peer) -> None:
        """Sessions that have left it while it was away may still be there; nobody wants them."""
        for session, fence in self._strays.pop(peer, {}).items():
            if not self._is_at(session, peer):
                peer.send([Close(0, session, fence=fence)])
        self._go_on()

    def on_down(self, peer: Peer) -> None:
        """What was under way waits for it, or goes to another."""
        for turn in self.turns.values():
            place = self._places.get(turn.session)
            if place is not None and place.peer is peer:
                turn.interrupt()
        here, lost = asyncio.get_running_loop(), _incarnation(peer)
        sessions = [s for s, p in self._places.items() if (p.peer, p.incarnation) == (peer, lost)]
        at_work = {*self.mirror.with_turn(), *self._asked()}.intersection(sessions)
        self.quarantine.lost(lost, sessions, at_work, time.monotonic())
        here.call_later(RETURN_S + 0.01, self._go_on)
        here.call_later(RECORD_S + 0.01, self._go_on)

    def on_gone(self, peer: Peer) -> None:
        self.remove(peer)
        if not self.peers:
            self.fail(EngineLost("the engine went away and did not come back"))

    def remove(self, peer: Peer) -> None:
        if peer in self.peers:
            self.peers.remove(peer)
        self._strays.pop(peer, None)
        self._go_on()

    def fail(self, error: EngineLost) -> None:
        """There will be no engine any more."""
        self.gone = error
        self.lost.set()
        if not self.first_ready.done():
            self.first_ready.cancel()
        for n in list(self._pending):
            self._answer(n, error)
        for turn in list(self.turns.values()):
            turn.put(error)
        self.turns.clear()

    async def watch(self) -> None:
        """Asks every engine every PING_S whether it is there, and looks for sessions whose time is
        up. Sessions of one that does not answer go to others, if there are any."""
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(PING_S)
            late = time.monotonic() - before_s > PING_S + SILENT_S / 2
            self._expire()
            for peer in self.peers:
                peer.ping(late=late)
                if not peer.up and time.monotonic() - peer.down_s > STRAYS_S:
                    self._strays.pop(peer, None)
            silent = [peer for peer in self.peers if peer.up and not peer.answers]
            if silent and len(silent) < sum(peer.up for peer in self.peers):
                for peer in silent:
                    peer.hang_up("it does not answer, and others do")

    def _expire(self) -> None:
        """Ends the sessions whose time is up and whose engine cannot: it is gone, or would not be
        heard."""
        for session in self.mirror.timed_out():
            place = self._places.get(session)
            if place is None or place.linked or session in self._asked():
                continue
            self._forget(session)
            self.on_expired(session)

    def _asked(self) -> set[str]:
        """Sessions on which a command waits for its answer."""
        commands = (pending.command for pending in self._pending.values())
        return {command.session for command in commands if isinstance(command, SessionCommand)}

    # ---- quarantine -----------------------------------------------------------------------

    def _put_in_quarantine(self, session: str) -> None:
        """Quarantine a session: fail its turn, refuse its pending commands, and send it to no
        engine."""
        log.error("session %s: %s", session, QUARANTINED)
        place = self._places.get(session)
        if place is not None and not place.lost:
            self._end_at(place.peer, session, place.fence)
        for turn in [turn for turn in self.turns.values() if turn.session == session]:
            if (ended := self.mirror.failing(turn, QUARANTINED)) is not None:
                self.ignore(turn)
                turn.put(ended)
        self._forget(session)
        for pending in list(self._pending.values()):
            if self._is_quarantined(pending.command):
                self._answer_quarantined(pending.command)

    def _is_quarantined(self, command: AnyCommand) -> bool:
        return isinstance(command, SessionCommand) and command.session in self.quarantine

    def _answer_quarantined(self, command: AnyCommand) -> None:
        closes = isinstance(command, Close)
        self._answer(
            command.n,
            Done(command.n) if closes else SessionQuarantined(QUARANTINED, field="session"),
        )

    def _go_on(self) -> None:
        """Turns and commands whose engine is not there any more, wherever they can now."""
        if self.gone is not None:
            return
        for session in self.mirror.with_turn():
            self._whereabouts(session)
        for pending in list(self._pending.values()):
            if pending.peer is None or not pending.peer.up or pending.life != pending.peer.life:
                self._dispatch(pending)

    # ---- answers --------------------------------------------------------------------------

    def _is_at(self, session: str, peer: Peer) -> bool:
        place = self._places.get(session)
        return place is not None and place.peer is peer

    def _done(self, done: Done, peer: Peer) -> None:
        """Also of a command nobody waits for any more: it has taken effect."""
        pending = self._pending.get(done.n)
        if pending is None or pending.peer is not peer:
            return
        assert peer.ready is not None
        self.mirror.done(pending.command, done, peer.ready.max_model_len)
        if isinstance(pending.command, Close):
            session = pending.command.session
            if self._places.get(session) is pending.place:  # else it was taken up again since
                self._places.pop(session, None)
                self.quarantine.clear(session)
        self._answer(done.n, done)

    def _refused(self, refused: Refused, peer: Peer) -> None:
        if pending := self._pending.get(refused.n):
            if refused.code == UnknownSession.code:
                self._check_known(pending.command, peer)
            match pending.command:
                case Open(session=made) | Attach(session=made) | Fork(child=made):
                    place = self._places.get(made)
                    ours = place is not None and place.fence == pending.command.fence
                    if ours and not self.mirror.knows(made):
                        del self._places[made]
                case _:
                    pass
        kind = BY_CODE.get(refused.code, EngineError)
        self._answer(refused.n, kind(refused.message, field=refused.field))

    def _check_known(self, command: AnyCommand, peer: Peer) -> None:
        """Its engine says that there is no such session: so it may be opened again."""
        if isinstance(command, SessionCommand) and self._is_at(command.session, peer):
            self.mirror.forget(command.session)

    def _answer(self, n: int, answer: Done | EngineError) -> None:
        pending = self._pending.pop(n, None)
        if pending is None or pending.reply.done():
            return
        if isinstance(answer, EngineError):
            pending.reply.set_exception(answer)
        else:
            pending.reply.set_result(answer)

    def _forget(self, session: str) -> None:
        self.mirror.forget(session)
        self._places.pop(session, None)
        self.quarantine.clear(session)

    def _superseded(self, session: str) -> None:
        """Another front has it. What was asked of it is refused by the engine itself."""
        self._forget(session)
        self.on_superseded(session)
        for key in [key for key in self.turns if key[0] == session]:
            self.turns.pop(key).put(StaleFence(f"session {session} was taken over"))


def _incarnation(peer: Peer) -> str:
    return peer.ready.incarnation if peer.ready else ""


def _seen(reply: "asyncio.Future[Done]") -> None:
    """Nobody need wait for an answer."""
    if not reply.cancelled():
        reply.exception()

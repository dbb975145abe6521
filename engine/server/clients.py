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
from continuo.engine.errors import CommandFailed, EngineError, StaleFence, UnknownSession
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
    Load,
    LoadFailed,
    Loading,
    Locate,
    LoopCommand,
    Open,
    Pause,
    Ping,
    Pong,
    Ready,
    Refused,
    SessionCommand,
    Stats,
    Superseded,
    Tokens,
    TurnEnded,
)

log = logging.getLogger(__name__)

Say = Callable[[list[AnyEvent]], None]
NOBODY = 0
FILE_SUFFIXES = (".json", ".jinja", ".txt", ".model")
FILE_BYTES_MAX = 64 << 20
"""A larger one is none that is read for its words."""


class Front:
    """One link, as the engine sees it."""

    def __init__(self, say: Say, hang_up: Callable[[], None] | None) -> None:
        self.say = say
        self.hang_up = hang_up
        """None: whoever is at the other end of it is there as long as the link is."""
        self.name = ""
        self.heard_s = 0.0
        """When it last said something."""


class Hold:
    """Who may change a session and hears of it. `front` is None when its front was lost."""

    __slots__ = ("fence", "front", "losses")

    def __init__(self, front: Front, fence: int) -> None:
        self.front: Front | None = front
        self.fence = fence
        self.losses = 0
        """How often it was left without a front."""


class Orphan(NamedTuple):
    """A session and the loss of its front by which it became one."""

    session: str
    hold: Hold
    loss: int


class Asked(NamedTuple):
    """A command on its way through the loop: who waits for its answer, under which number."""

    front: Front
    command: LoopCommand
    made: str | None
    """The session that is there because of it, and is not if it is refused."""


class Fronts:
    def __init__(
        self,
        tell: Callable[[list[LoopCommand]], None],
        load: Callable[[], Load],
        config: EngineConfig,
        clock: Callable[[], float],
        folder: str,
    ) -> None:
        """`folder`: of the model."""
        self._folder = folder
        self._tell = tell
        self._load = load
        self._config = config
        self._clock = clock
        self._holds: dict[str, Hold] = {}
        self._closing: dict[str, Hold] = {}
        """Those on their way out: the name is free, the end of their turn is still to be heard."""
        self._asked: dict[int, Asked] = {}
        self._n = NOBODY
        self.all: set[Front] = set()

    # ---- fronts come and go ---------------------------------------------------------------

    def join(self, say: Say, hang_up: Callable[[], None] | None = None) -> Front:
        front = Front(say, hang_up)
        front.heard_s = self._clock()
        self.all.add(front)
        return front

    def leave(self, front: Front) -> None:
        """Its turns go on for `detach_grace_s`, its sessions stay for `detach_keep_s`."""
        self.all.discard(front)
        orphans: list[Orphan] = []
        for name, hold in self._holds.items():
            if hold.front is front:
                hold.front, hold.losses = None, hold.losses + 1
                orphans.append(Orphan(name, hold, hold.losses))
        if orphans:
            here, config = asyncio.get_running_loop(), self._config
            here.call_later(config.detach_grace_s, self._pause, orphans)
            here.call_later(config.detach_keep_s, self._close, orphans)

    def _knows(self, front: Front, name: str) -> None:
        """Who is here by a new link is so by that alone, though the loss of the one before has not
        been heard of yet."""
        if not name or front.name == name:
            return
        front.name = name
        for before in [other for other in self.all if other.name == name and other is not front]:
            self.leave(before)
            if before.hang_up is not None:
                before.hang_up()

    def drop_silent(self, for_s: float) -> None:
        """Hangs up on fronts elsewhere that have not said anything for so long."""
        since_s = self._clock() - for_s
        for front in list(self.all):
            if front.hang_up is not None and front.heard_s < since_s:
                front.hang_up()

    # ---- commands in ----------------------------------------------------------------------

    def receive(self, front: Front, commands: list[AnyCommand]) -> None:
        """What a front says. Refused is what it may not; the rest goes to the loop, in order."""
        front.heard_s = self._clock()
        passed: list[LoopCommand] = []
        for command in commands:
            try:
                self._take(front, command, passed)
            except EngineError as error:
                front.say([Refused(command.n, error.code, error.message, error.field)])
            except Exception as error:
                name = type(command).__name__
                log.exception("%s failed by a fault of the engine", name)
                message = f"the engine failed at {name}: {type(error).__name__}: {error}"
                front.say([Refused(command.n, CommandFailed.code, message)])
        if passed:
            self._tell(passed)

    def _take(self, front: Front, command: AnyCommand, passed: list[LoopCommand]) -> None:
        made = None
        match command:
            case Ping():
                self._knows(front, command.front)
                front.say([Pong(self._load())])
                return
            case Locate():
                if command.session not in self._holds:
                    raise UnknownSession(f"there is no session {command.session}", field="session")
                front.say([Done(command.n)])
                return
            case Files():
                front.say([Done(command.n, files=_files(self._folder))])
                return
            case ListSessions() | Stats() | Drain() | Info():
                pass
            case Open():
                command, made = self._opening(front, command)
            case Attach():
                made = self._attaching(front, command)
            case Fork():
                self._check(front, command)
                made = self._bearing(front, command, passed)
            case Close():
                if not self._is_left(command):
                    self._check(front, command)
                if hold := self._holds.pop(command.session, None):
                    self._closing[command.session] = hold
            case _:
                self._check(front, command)
        passed.append(self._numbered(front, command, made))

    def _opening(self, front: Front, command: Open) -> tuple[Open | Attach, str | None]:
        """A session that is here under a lower fence is begun anew."""
        hold = self._holds.get(command.session)
        if hold is None or (hold.front is front and hold.fence == command.fence):
            made = self._attaching(front, command)
            return command, made
        attach = Attach(command.n, command, [], fence=command.fence)
        return attach, self._attaching(front, attach)

    def _bearing(self, front: Front, command: Fork, passed: list[LoopCommand]) -> str | None:
        """A child left by a lost link, whose front did not hear that it was there, is made anew."""
        hold = self._holds.get(command.child)
        if hold is not None and hold.front is None and command.child_fence >= hold.fence:
            passed.append(Close(NOBODY, command.child))
        elif hold is not None:
            return None
        self._holds[command.child] = Hold(front, command.child_fence)
        return command.child

    def _attaching(self, front: Front, command: Open | Attach) -> str | None:
        session, fence = command.session, command.fence
        hold = self._holds.get(session)
        if hold is None:
            self._holds[session] = Hold(front, fence)
            return session
        if fence < hold.fence or (fence == hold.fence and hold.front not in (None, front)):
            raise _stale(session, fence, hold)
        if hold.front is not None and hold.front is not front:
            hold.front.say([Superseded(session, fence)])
        hold.front, hold.fence = front, fence
        return None

    def _is_left(self, command: Close) -> bool:
        """Nobody holds it: who knows its fence may end it."""
        hold = self._holds.get(command.session)
        return hold is not None and hold.front is None and command.fence >= hold.fence

    def _check(self, front: Front, command: SessionCommand) -> None:
        """The front holds the session it speaks of. A session that is not here is refused by the
        loop; one that is another's is, for a front that has never held it, as good as not here."""
        hold = self._holds.get(command.session)
        if hold is None:
            return
        if command.fence < hold.fence:
            raise _stale(command.session, command.fence, hold)
        if hold.front is not front:
            raise UnknownSession(
                f"this front does not hold session {command.session}: attach it", field="session"
            )
        hold.fence = command.fence

    def _numbered(self, front: Front, command: LoopCommand, made: str | None) -> LoopCommand:
        """Numbers are the fronts' own, so that two of them may use the same. One with the number 0
        waits for no answer, and yet what it has made must be forgotten if it is refused."""
        self._n += 1
        self._asked[self._n] = Asked(front, command, made)
        return msgspec.structs.replace(command, n=self._n)

    # ---- events out -----------------------------------------------------------------------

    def send_all(self, events: list[AnyEvent]) -> None:
        """To each front what concerns it, in order."""
        mail: dict[Front, list[AnyEvent]] = {}
        for event in events:
            front, said = self._address(event)
            if front is not None:
                mail.setdefault(front, []).append(said)
        for front, told in mail.items():
            front.say(told)

    def _address(self, event: AnyEvent) -> tuple[Front | None, AnyEvent]:
        match event:  # tokens, the most frequent, first
            case Tokens() | TurnEnded():
                hold = self._closing.get(event.session) or self._holds.get(event.session)
                return (hold.front if hold else None), event
            case Done() | Refused():
                return self._answered(event)
            case Expired():
                hold = self._holds.pop(event.session, None)
                return (hold.front if hold else None), event
            case Ready() | Loading() | LoadFailed() | Superseded() | Pong():
                return None, event
            case _:
                assert_never(event)

    def _answered(self, event: Done | Refused) -> tuple[Front | None, AnyEvent]:
        asked = self._asked.pop(event.n, None)
        if asked is None:
            return None, event
        refused = isinstance(event, Refused)
        if refused and asked.made is not None:
            self._holds.pop(asked.made, None)
        if isinstance(asked.command, Close):
            self._closing.pop(asked.command.session, None)
        front = asked.front if asked.command.n != NOBODY else None
        return front, msgspec.structs.replace(event, n=asked.command.n)

    # ---- sessions that nobody holds ---------------------------------------------------------

    def _pause(self, orphans: list[Orphan]) -> None:
        self._tell([Pause(NOBODY, name) for name in self._still(orphans)])

    def _close(self, orphans: list[Orphan]) -> None:
        closed = self._still(orphans)
        for name in closed:
            del self._holds[name]
        self._tell([Close(NOBODY, name) for name in closed])

    def _still(self, orphans: list[Orphan]) -> list[str]:
        """Those that are here, and that nobody has taken up since."""
        return [
            name
            for name, hold, loss in orphans
            if hold.front is None and hold.losses == loss and self._holds.get(name) is hold
        ]


def _files(folder: str) -> dict[str, bytes]:
    """All but the weights."""
    return {
        file.name: file.read_bytes()
        for file in Path(folder).iterdir()
        if file.suffix in FILE_SUFFIXES and file.stat().st_size <= FILE_BYTES_MAX
    }


def _stale(session: str, fence: int, hold: Hold) -> StaleFence:
    return StaleFence(
        f"session {session} was taken over: its fence is {hold.fence}, this one is {fence}",
        field="fence",
    )

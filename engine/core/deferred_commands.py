"""Waiting: the commands that wait for a session's turn, or its step in flight, to end. Pure."""

from collections import deque
from typing import TypeGuard

from continuo.engine.errors import Busy
from continuo.engine.wire.messages import Append, Attach, Fork, Generate, Rewind

DEFERRED_MAX = 256
"""Commands that may wait on one session."""
QUEUED_TURNS_MAX = 8
"""Turns among them."""

Deferrable = Append | Attach | Generate | Rewind | Fork


class Waiting(deque[Deferrable]):
    """What waits on one session, in order."""

    __slots__ = ()

    @property
    def turns(self) -> int:
        return sum(isinstance(command, Generate) for command in self)

    def outdated(self, command: Deferrable) -> Append | None:
        """The provisional span that alone waits, if `command` is the next one: taken out."""
        if len(self) == 1 and _provisional(command) and _provisional(last := self[-1]):
            self.clear()
            return last
        return None

    def put(self, command: Deferrable, session: str) -> None:
        """Raises Busy where too many wait on the session already."""
        if len(self) >= DEFERRED_MAX:
            raise Busy(f"{DEFERRED_MAX} commands already wait on session {session}")
        if isinstance(command, Generate) and (turns := self.turns) >= QUEUED_TURNS_MAX:
            raise Busy(
                f"session {session} has a turn in flight and {turns} queued, which is the most",
                field="turn",
            )
        self.append(command)

    def withdraw(self, turn: str) -> Generate | None:
        """The turn of that name, which waits no longer; None: it is not here."""
        for command in self:
            if isinstance(command, Generate) and command.turn == turn:
                self.remove(command)
                return command
        return None


def _provisional(command: Deferrable) -> TypeGuard[Append]:
    return isinstance(command, Append) and command.span == "provisional"

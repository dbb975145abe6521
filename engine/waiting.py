"""Waiting: the commands that wait for a session's turn, or its step in flight, to end. Pure."""

from collections import deque
from typing import TypeGuard

from engine.errors import Busy
from engine.messages import Append, Attach, Fork, Generate, Rewind

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

    def put(self, command: Deferrable, session: str) -> Append | None:
        """Returns what it replaces: a provisional span that waits right before another one will
        never be seen. Raises Busy where too many wait on the session already."""
        last, replaced = self[-1] if self else None, None
        if _provisional(last) and _provisional(command):
            self.pop()
            replaced = last
        if len(self) >= DEFERRED_MAX:
            raise Busy(f"{DEFERRED_MAX} commands already wait on session {session}")
        if isinstance(command, Generate) and (turns := self.turns) >= QUEUED_TURNS_MAX:
            raise Busy(
                f"session {session} has a turn in flight and {turns} queued, which is the most",
                field="turn",
            )
        self.append(command)
        return replaced

    def withdraw(self, turn: str) -> Generate | None:
        """The turn of that name, which waits no longer; None: it is not here."""
        for command in self:
            if isinstance(command, Generate) and command.turn == turn:
                self.remove(command)
                return command
        return None


def _provisional(command: Deferrable | None) -> TypeGuard[Append]:
    return isinstance(command, Append) and command.span == "provisional"

"""Waiting: the commands that wait for a session's turn, or its step in flight, to end. Pure."""

from collections import deque
from typing import TypeGuard

from continuo.engine.errors import Busy
from continuo.engine.wire.messages import (
    AppendIds,
    AttachSession,
    ForkSession,
    Generate,
    RewindSession,
)

DEFERRED_COMMANDS_MAX = 256
"""Commands that may wait on one session."""
QUEUED_TURNS_MAX = 8
"""Turns among them."""

DeferrableCommand = AppendIds | AttachSession | Generate | RewindSession | ForkSession


class DeferredCommands(deque[DeferrableCommand]):
    """What waits on one session, in order."""

    __slots__ = ()

    @property
    def queued_turns(self) -> int:
        return sum(isinstance(command, Generate) for command in self)

    def pop_superseded_span(self, command: DeferrableCommand) -> AppendIds | None:
        """The provisional span that alone waits, if `command` is the next one: taken out."""
        if len(self) == 1 and _is_provisional(command) and _is_provisional(last := self[-1]):
            self.clear()
            return last
        return None

    def put(self, command: DeferrableCommand, session: str) -> None:
        """Raises Busy where too many wait on the session already."""
        if len(self) >= DEFERRED_COMMANDS_MAX:
            raise Busy(f"{DEFERRED_COMMANDS_MAX} commands already wait on session {session}")
        if isinstance(command, Generate) and (turns := self.queued_turns) >= QUEUED_TURNS_MAX:
            raise Busy(
                f"session {session} has a turn in flight and {turns} queued, which is the most",
                field="turn",
            )
        self.append(command)

    def remove_turn(self, turn: str) -> Generate | None:
        """The turn of that name, which waits no longer; None: it is not here."""
        for command in self:
            if isinstance(command, Generate) and command.turn == turn:
                self.remove(command)
                return command
        return None


def _is_provisional(command: DeferrableCommand) -> TypeGuard[AppendIds]:
    return isinstance(command, AppendIds) and command.span == "provisional"

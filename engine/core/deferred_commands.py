"""DeferredCommands: the commands of a session that wait until it is idle. Pure."""

from collections import deque
from typing import TypeGuard

from continuo.engine.errors import Busy
from continuo.engine.wire.messages import (
    AppendIds,
    AttachSession,
    ForkSession,
    Generate,
    ResumeTurn,
    RewindSession,
)

DEFERRED_COMMANDS_MAX = 256
"""Maximum deferred commands of one session."""
QUEUED_TURNS_MAX = 8
"""Maximum Generate commands among the deferred commands of one session."""

DeferrableCommand = AppendIds | AttachSession | Generate | ResumeTurn | RewindSession | ForkSession


class DeferredCommands(deque[DeferrableCommand]):
    """Deferred commands of one session, in order."""

    __slots__ = ()

    @property
    def queued_turns(self) -> int:
        return sum(isinstance(command, Generate) for command in self)

    def pop_superseded_span(self, command: DeferrableCommand) -> AppendIds | None:
        """Remove and return the only deferred command if both it and `command` append a provisional
        span, because the span of `command` replaces it. Returns None otherwise."""
        if len(self) == 1 and _is_provisional(command) and _is_provisional(last := self[-1]):
            self.clear()
            return last
        return None

    def put(self, command: DeferrableCommand, session: str) -> None:
        """Defer a command. Raises Busy if too many are deferred already."""
        if len(self) >= DEFERRED_COMMANDS_MAX:
            raise Busy(f"session {session} already has {DEFERRED_COMMANDS_MAX} deferred commands")
        if isinstance(command, Generate) and (turns := self.queued_turns) >= QUEUED_TURNS_MAX:
            raise Busy(
                f"session {session} has a turn in flight and {turns} queued, which is the limit",
                field="turn",
            )
        self.append(command)

    def remove_turn(self, turn: str) -> Generate | None:
        """Remove and return the queued turn with this id; None if there is none."""
        for command in self:
            if isinstance(command, Generate) and command.turn == turn:
                self.remove(command)
                return command
        return None


def _is_provisional(command: DeferrableCommand) -> TypeGuard[AppendIds]:
    return isinstance(command, AppendIds) and command.span == "provisional"

"""PendingCommands: the commands of this client that an engine has not replied to."""

import asyncio
from collections.abc import Iterator

from continuo.engine.client.connection import EngineConnection
from continuo.engine.client.placements import Placement
from continuo.engine.errors import EngineError
from continuo.engine.wire.messages import CloseSession, CommandDone, EngineCommand, SessionCommand


class PendingCommand:
    """A command without a reply yet. `connection` is the engine that it was sent to; None while the
    command waits for an engine."""

    __slots__ = ("command", "connection", "link_epoch", "placement", "preferred", "reply", "waits")

    def __init__(self, command: EngineCommand, preferred: str | None, *, waits: bool) -> None:
        """`preferred`: the incarnation of the engine that may have the session's KV. `waits`:
        whether the command waits for an engine if none can take it now."""
        self.command = command
        self.preferred = preferred
        self.waits = waits
        self.reply: asyncio.Future[CommandDone] = asyncio.get_running_loop().create_future()
        self.connection: EngineConnection | None = None
        self.placement: Placement | None = None
        """Placement of its session when the command was sent."""
        self.link_epoch = 0

    @property
    def is_lost(self) -> bool:
        """Whether the link on which the command was sent is lost."""
        return self.connection is not None and (
            not self.connection.is_connected or self.link_epoch != self.connection.link_epoch
        )


class PendingCommands:
    """The pending commands by their number, in the order in which they were submitted."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingCommand] = {}
        self._last_number = 0

    def __iter__(self) -> Iterator[PendingCommand]:
        """Iterate over all, of which some may be resolved meanwhile."""
        return iter(list(self._pending.values()))

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def add(self, pending: PendingCommand) -> None:
        pending.reply.add_done_callback(_mark_retrieved)
        self._pending[pending.command.n] = pending

    def find(self, n: int) -> PendingCommand | None:
        return self._pending.get(n)

    def discard(self, pending: PendingCommand) -> None:
        """Ignore the reply of a command, or do not send it any more."""
        self._pending.pop(pending.command.n, None)

    def resolve(self, n: int, outcome: CommandDone | EngineError) -> None:
        """Reply to the caller of a command, unless it has a reply or waits no longer."""
        pending = self._pending.pop(n, None)
        if pending is None or pending.reply.done():
            return
        if isinstance(outcome, EngineError):
            pending.reply.set_exception(outcome)
        else:
            pending.reply.set_result(outcome)

    def list_sessions(self) -> set[str]:
        """List the sessions with a pending command."""
        commands = (pending.command for pending in self)
        return {command.session for command in commands if isinstance(command, SessionCommand)}

    def has_close(self, session: str) -> bool:
        """Return whether a command to close a session is pending."""
        return any(
            isinstance(pending.command, CloseSession) and pending.command.session == session
            for pending in self
        )


def _mark_retrieved(reply: "asyncio.Future[CommandDone]") -> None:
    """Mark the exception of a reply as retrieved, because its caller may no longer wait; asyncio
    would log an error otherwise."""
    if not reply.cancelled():
        reply.exception()

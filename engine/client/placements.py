"""Placements of sessions on engines, and the stale copies that they leave on others."""

import time

from continuo.engine.client.connection import EngineConnection
from continuo.engine.client.turn_stream import TurnStream
from continuo.engine.wire.messages import CloseSession, OpenSession, SessionInfo

STALE_COPY_S = 900.0
"""Maximum seconds for which the stale copies on a disconnected engine are remembered. After that
time the engine has closed its detached sessions by itself."""


class Placement:
    """Location of a session: its engine, the link on which it was opened or attached, its fence."""

    __slots__ = (
        "connection",
        "fence",
        "incarnation",
        "is_open",
        "last_used_s",
        "length",
        "link_epoch",
        "must_move",
        "opened",
    )

    def __init__(self, opened: OpenSession, connection: EngineConnection, fence: int) -> None:
        self.opened = opened
        self.connection = connection
        self.fence = fence
        self.link_epoch = connection.link_epoch
        """`EngineConnection.link_epoch` of the link on which the session was opened or attached; -1
        after an attach was refused."""
        self.incarnation = connection.incarnation
        self.must_move = False
        """Whether the engine has refused a turn because it is draining."""
        self.is_open = False
        """Whether an engine has confirmed that the session was opened."""
        self.length = 0
        """Last known length of the log, in tokens."""
        self.last_used_s = time.monotonic()
        """Monotonic time of the last command that took effect, or of the end or the detachment of
        the last turn."""

    @property
    def is_linked(self) -> bool:
        """Whether the link on which the session was opened or attached is still connected."""
        return self.connection.is_connected and self.link_epoch == self.connection.link_epoch

    @property
    def is_lost(self) -> bool:
        """Whether the engine process that has the session is disconnected or was restarted."""
        connection = self.connection
        return not connection.is_connected or self.incarnation != connection.incarnation

    @property
    def has_timed_out(self) -> bool:
        timeout_s = self.opened.timeout_s
        return timeout_s is not None and time.monotonic() - self.last_used_s >= timeout_s

    def build_info(self, turn: TurnStream | None) -> SessionInfo:
        """Build the SessionInfo of a detached session with this unfinished turn. All of its KV
        counts as lost."""
        length = self.length if turn is None else turn.prompt_tokens + turn.received
        is_generating = turn is not None and not turn.is_paused
        return SessionInfo(
            session=self.opened.session,
            streaming=self.opened.streaming,
            state="generating" if is_generating else "idle",
            length=length,
            provisional=0,
            committed=0,
            held_pages=0,
            host_pages=0,
            host_tokens=0,
            lost_tokens=length,
            turn=turn.id if turn is not None and is_generating else None,
            idle_s=time.monotonic() - self.last_used_s,
        )


class StaleCopies:
    """Copies of sessions that moved to another engine or were closed meanwhile. Each is closed on
    its engine, when that reconnects if it is disconnected."""

    def __init__(self) -> None:
        self._fences: dict[EngineConnection, dict[str, int]] = {}
        """For each disconnected engine, the sessions to close there, with their fences."""

    def close(self, connection: EngineConnection, session: str, fence: int) -> None:
        if connection.is_connected:
            connection.send([CloseSession(0, session, fence=fence)])
        else:
            self._fences.setdefault(connection, {})[session] = fence

    def close_all(self, connection: EngineConnection, placements: dict[str, Placement]) -> None:
        """Close the copies on an engine that has reconnected, except those of sessions which are
        placed there again."""
        for session, fence in self._fences.pop(connection, {}).items():
            placement = placements.get(session)
            if placement is None or placement.connection is not connection:
                connection.send([CloseSession(0, session, fence=fence)])

    def discard(self, connection: EngineConnection) -> None:
        """Discard the copies on an engine that does not reconnect."""
        self._fences.pop(connection, None)

    def discard_old(self) -> None:
        """Discard the copies on engines that were disconnected STALE_COPY_S ago."""
        now_s = time.monotonic()
        for connection in list(self._fences):
            if now_s - connection.disconnected_since_s > STALE_COPY_S:
                self.discard(connection)

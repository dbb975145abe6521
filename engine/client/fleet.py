"""EngineFleet: the engines of a client: keeps their links, and reports load and availability."""

import asyncio
import functools

import msgspec

from continuo.engine.client.connection import (
    EngineConnection,
    LinkSecurity,
    open_socket,
    reconnect_backoff,
)
from continuo.engine.client.router import LOCATE_TIMEOUT_S, Router
from continuo.engine.wire.messages import (
    DrainEngine,
    EngineLoad,
    EngineStats,
    GetStats,
    ListSessions,
    SessionInfo,
)


class EngineFleet:
    """The engines of one client, which may come and go, and what all of them report together."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._supervisors: dict[EngineConnection, asyncio.Task[None]] = {}
        self._monitor: asyncio.Task[None] | None = None

    def add(self, host: str, port: int, security: LinkSecurity | None = None) -> None:
        """Add a remote engine; it is connected in the background and may disconnect at any time."""
        name = f"{host}:{port}"
        if all(connection.name != name for connection in self._router.connections):
            launch = functools.partial(open_socket, host, port)
            security = security or LinkSecurity()
            if security.hostname is None:
                security = msgspec.structs.replace(security, hostname=host)
            connection = EngineConnection(
                name, launch, self._router, backoff=reconnect_backoff, security=security
            )
            self._router.connections.append(connection)
            self.supervise(connection)

    def remove(self, host: str, port: int) -> None:
        """Remove a remote engine; its sessions move to others."""
        for connection in list(self._router.connections):
            if connection.name == f"{host}:{port}":
                self._supervisors.pop(connection).cancel()
                connection.disconnect("the engine was removed")
                self._router.remove(connection)

    def supervise(self, connection: EngineConnection) -> None:
        """Reconnect an engine after each loss of its link. Monitor all engines."""
        self._supervisors[connection] = asyncio.create_task(
            connection.run_with_restarts(), name=f"engine {connection.name}"
        )
        if self._monitor is None:
            self._monitor = asyncio.create_task(self._router.monitor(), name="engines")

    def stop(self) -> None:
        """Close all links."""
        for task in (*self._supervisors.values(), self._monitor):
            if task is not None:
                task.cancel()
        for connection in self._router.connections:
            connection.close()

    async def wait_until_lost(self) -> None:
        """Wait until no engine is available and none is expected to return."""
        await self._router.failed.wait()

    async def drain(self) -> None:
        """Make all engines refuse new sessions and turns; running turns continue."""
        await self._router.request_all(DrainEngine)

    # ---- availability and load ------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether an engine is connected and responds."""
        return any(connection.is_responsive for connection in self._router.connections)

    @property
    def is_available_soon(self) -> bool:
        """Whether a command sent now will be executed soon: an engine responds and is not draining,
        or may be restarting."""
        return any(
            connection.is_available_soon
            and not (connection.is_connected and connection.load.draining)
            for connection in self._router.connections
        )

    @property
    def is_accepting_sessions(self) -> bool:
        """Whether an engine responds and is not draining."""
        return any(
            connection.is_responsive and not connection.load.draining
            for connection in self._router.connections
        )

    def loads(self) -> dict[str, EngineLoad]:
        """Return the last reported load of each responsive engine, by incarnation."""
        responsive = [
            connection for connection in self._router.connections if connection.is_responsive
        ]
        return {
            connection.ready.incarnation: connection.load
            for connection in responsive
            if connection.ready
        }

    def is_responsive_at(self, host: str, port: int) -> bool:
        """Return whether the engine added under this address responds."""
        name = f"{host}:{port}"
        return any(
            connection.is_responsive
            for connection in self._router.connections
            if connection.name == name
        )

    @property
    def active_turns(self) -> int:
        """Number of turns of this client that have not ended."""
        return len(self._router.turns)

    @property
    def longest_active_output(self) -> int:
        """Most ids that this client has received of a turn that has not ended; 0 without a turn."""
        return max((turn.received for turn in self._router.turns), default=0)

    # ---- sessions -------------------------------------------------------------------------

    def incarnation_of(self, session: str) -> str | None:
        """Return the incarnation of the engine that has a session; None if it is not placed."""
        placement = self._router.placements.get(session)
        return None if placement is None else placement.connection.incarnation

    async def inspect(self, session: str, within_s: float = LOCATE_TIMEOUT_S) -> SessionInfo | None:
        """Return the SessionInfo of a session that may be attached to another client. Returns None
        if no engine reports it within `within_s`."""
        return await self._router.inspect(session, within_s)

    async def list_sessions(self, sessions: list[str] | None = None) -> list[SessionInfo]:
        """List the sessions of all engines, and the sessions whose engine was lost and that are not
        attached to another one yet. `sessions`: only these, as far as they exist; the list then
        costs what they are, not what all are."""
        replies = await self._router.request_all(lambda n: ListSessions(n, sessions))
        infos = [info for done in replies for info in done.sessions or []]
        known, placements = {info.session for info in infos}, self._router.placements
        asked = placements if sessions is None else (id for id in sessions if id in placements)
        lost = [id for id in asked if placements[id].is_open and id not in known]
        turns = {turn.session: turn for turn in self._router.turns} if lost else {}
        return infos + [placements[id].build_info(turns.get(id)) for id in lost]

    async def stats(self) -> EngineStats:
        """Return the sums of the statistics of all engines. `sessions` also counts those whose
        engine was lost."""
        found = [done.stats for done in await self._router.request_all(GetStats) if done.stats]
        names = EngineStats.__struct_fields__
        sums = EngineStats(*(sum(getattr(stats, name) for stats in found) for name in names))
        lost = sum(p.is_open and p.is_lost for p in self._router.placements.values())
        return msgspec.structs.replace(sums, sessions=sums.sessions + lost)

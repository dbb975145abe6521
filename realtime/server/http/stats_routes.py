"""Statistics of the server, for the web pages and for operators; read only.

    GET /v1/stats                 engine, gateway process, recent warnings, and what tenants use
    GET /v1/realtime/sessions     the tenant's sessions in this process, newest first

Both need a key. /v1/stats refuses client secrets; with a key that has the scope `read`, and not
`admin`, it contains only what its own tenant uses. Warnings are included only if all keys belong to
one tenant. With a client secret, the list contains only sessions created with it, or the session
whose `resume_token` is in the query.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import EngineClient, EngineError, EngineStats, SessionInfo
from continuo.realtime.completions.token_sessions import TokenSessions
from continuo.realtime.limits import TenantLimits
from continuo.realtime.registry.access import Credentials
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.session_routes import access_of
from continuo.realtime.server.logging_setup import LoggedWarning, RecentWarnings
from continuo.realtime.session.session import Session
from continuo.realtime.tenants.ledger import HeldBytes
from continuo.realtime.tenants.tenants import Tenant

ENGINE_TIMEOUT_S = 2.0
"""Timeout of the request for the engine's statistics; after it, the engine counts as
unavailable."""
LISTED_SESSIONS_MAX = 200
"""Maximum number of sessions in a list; `has_more` says whether more exist."""
LISTED_TENANTS_MAX = 200


async def find_engine_infos(
    engine: EngineClient, sessions: Iterable[Session]
) -> dict[str, SessionInfo]:
    """Return the reports of the engine on sessions, by engine session id. A session without a
    report, because the engine is unavailable, is listed with its KV as lost."""
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT_S):
            infos = await engine.fleet.list_sessions([one.engine_session_id for one in sessions])
    except (EngineError, TimeoutError):
        return {}
    return {info.session: info for info in infos}


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """The use of this gateway by a tenant, from its ledger, and the limits of the tenant."""

    tenant: str
    sessions: int
    """Sessions in this process, connected or parked."""
    token_sessions: int
    """Open sessions of SGLang's API."""
    connections: int
    connections_elsewhere: int
    """Connections at the other gateways; 0 unless `connections_max` is set."""
    operations: int
    """Client events and HTTP requests since the start of the process, without those that were
    refused."""
    running_responses: int
    waiting_responses: int
    held_bytes: dict[HeldBytes, int]
    """Bytes that this gateway holds, by their kind."""
    stored_bytes: int
    """Bytes in the store; 0 unless `stored_bytes_max` is set."""
    refused: dict[str, int]
    """Refusals since the start of the process, by the limit that was reached."""
    limits: TenantLimits


class OwnStats(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /v1/stats` for a key without the scope `admin`."""

    object: Literal["tenant.stats"] = "tenant.stats"
    tenants: tuple[TenantStats]
    """The tenant of the key alone."""


class ServerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /v1/stats` for a key with the scope `admin`."""

    object: Literal["server.stats"] = "server.stats"
    model: str
    device: str
    dtype: str
    max_model_len: int
    page_size: int
    up_s: float
    sessions: int
    """Number of sessions in this process."""
    engine: EngineStats | None
    """Statistics of the engine. None: the engine is unavailable; it may be restarting."""
    tenants: tuple[TenantStats, ...]
    """The tenants that this process knows, those with most connections first; at most
    LISTED_TENANTS_MAX."""
    warnings: tuple[LoggedWarning, ...]


class StatsRoutes:
    """Routes of the statistics."""

    def __init__(
        self,
        engine: EngineClient,
        registry: Registry,
        token_sessions: TokenSessions,
        authenticator: Authenticator,
        recent_warnings: RecentWarnings,
        *,
        show_warnings: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        engine: reports of all engines.
        registry: sessions and tenants of this gateway.
        token_sessions: the sessions of SGLang's API.
        authenticator: decides what is shown to whom.
        recent_warnings: last lines of the log.
        show_warnings: whether the log is shown, which may name other tenants.
        clock: seconds of the monotonic clock, for the time since the start.
        """
        self._engine = engine
        self._registry = registry
        self._token_sessions = token_sessions
        self._authenticator = authenticator
        self._recent_warnings = recent_warnings
        self._show_warnings = show_warnings
        self._clock = clock
        self._started_s = clock()

    def routes(self) -> list[Route]:
        return [
            Route("/v1/stats", self.get_stats),
            Route("/v1/realtime/sessions", self.list_sessions),
        ]

    async def get_stats(self, request: Request) -> Response:
        found = self._authenticator.authenticate(request.headers)  # counts no wrong key
        is_operator = isinstance(found, Credentials) and "admin" in found.scopes
        credentials = replies.authenticate_full_key(
            self._authenticator, request, "admin" if is_operator else "read"
        )
        if isinstance(credentials, Response):
            return credentials
        tenants = self._registry.tenants
        if not is_operator:
            (own,) = self._tenant_stats([tenants.of(credentials.tenant)])
            return replies.json_response(OwnStats(tenants=(own,)))
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                engine_stats = await self._engine.fleet.stats()
        except (EngineError, TimeoutError):
            engine_stats = None
        ready = self._engine.ready
        return replies.json_response(
            ServerStats(
                model=ready.model,
                device=ready.device,
                dtype=ready.dtype,
                max_model_len=ready.max_model_len,
                page_size=ready.page_size,
                up_s=round(self._clock() - self._started_s, 1),
                sessions=len(self._registry),
                engine=engine_stats,
                tenants=self._tenant_stats(tenants)[:LISTED_TENANTS_MAX],
                warnings=self._recent_warnings.warnings if self._show_warnings() else (),
            )
        )

    def _tenant_stats(self, tenants: Iterable[Tenant]) -> tuple[TenantStats, ...]:
        """Return what tenants use, those with most connections first."""
        open_sessions = self._registry.open_sessions
        token_sessions = self._token_sessions.count_by_tenant()
        stats = [
            TenantStats(
                tenant=tenant.name,
                sessions=len(open_sessions.of_tenant(tenant.name)),
                token_sessions=token_sessions[tenant.name],
                connections=tenant.ledger.connections,
                connections_elsewhere=tenant.ledger.elsewhere.connections,
                operations=tenant.ledger.operations,
                running_responses=tenant.turns.running_count,
                waiting_responses=tenant.turns.waiting_count,
                held_bytes=tenant.ledger.held_bytes,
                stored_bytes=tenant.ledger.stored_bytes,
                refused=tenant.ledger.refused,
                limits=tenant.limits,
            )
            for tenant in tenants
        ]
        return tuple(sorted(stats, key=lambda each: (-each.connections, each.tenant)))

    async def list_sessions(self, request: Request) -> Response:
        credentials = replies.authenticate(self._authenticator, request, "read")
        if isinstance(credentials, Response):
            return credentials
        access = access_of(credentials, request)
        entries = self._registry.open_sessions.of_tenant(credentials.tenant)
        sessions = [entry.session for entry in entries if access.permits(entry.owner.secret)]
        listed = sessions[: -LISTED_SESSIONS_MAX - 1 : -1]
        infos = await find_engine_infos(self._engine, listed)
        data = [
            {"id": session.id, "object": "realtime.session", **session.status_from(infos).fields()}
            for session in listed
        ]
        return replies.json_response(
            {"object": "list", "data": data, "has_more": len(sessions) > LISTED_SESSIONS_MAX}
        )

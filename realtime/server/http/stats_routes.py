"""Statistics of the server, for the web pages and for operators; read only.

    GET /v1/stats                 engine, gateway process and recent warnings
    GET /v1/realtime/sessions     the tenant's sessions in this process, newest first

Both need a key. /v1/stats refuses client secrets and keys without the scope `admin`; warnings are
included only if all keys belong to one tenant. With a client secret, the list contains
only sessions created with it, or the session whose `resume_token` is in the query.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import EngineClient, EngineError, EngineStats, SessionInfo
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.session_routes import access_of
from continuo.realtime.server.logging_setup import LoggedWarning, RecentWarnings

ENGINE_TIMEOUT_S = 2.0
"""Timeout of the request for the engine's statistics; after it, the engine counts as
unavailable."""
LISTED_SESSIONS_MAX = 200
"""Maximum number of sessions in a list; `has_more` says whether more exist."""


class ServerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /v1/stats`."""

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
    warnings: tuple[LoggedWarning, ...]


class StatsRoutes:
    """Routes of the statistics."""

    def __init__(
        self,
        engine: EngineClient,
        registry: Registry,
        authenticator: Authenticator,
        recent_warnings: RecentWarnings,
        *,
        show_warnings: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._registry = registry
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
        credentials = replies.authenticate_full_key(self._authenticator, request, "admin")
        if isinstance(credentials, Response):
            return credentials
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
                warnings=self._recent_warnings.warnings if self._show_warnings() else (),
            )
        )

    async def list_sessions(self, request: Request) -> Response:
        credentials = replies.authenticate(self._authenticator, request, "read")
        if isinstance(credentials, Response):
            return credentials
        sessions = self._registry.list_sessions(credentials.tenant, access_of(credentials, request))
        infos: dict[str, SessionInfo] = {}
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                infos = {info.session: info for info in await self._engine.fleet.list_sessions()}
        except (EngineError, TimeoutError):
            pass  # a session without a report of the engine is listed with its KV as lost
        data = [
            {"id": session.id, "object": "realtime.session", **session.status_from(infos).fields()}
            for session in sessions[: -LISTED_SESSIONS_MAX - 1 : -1]
        ]
        return replies.json_response(
            {"object": "list", "data": data, "has_more": len(sessions) > LISTED_SESSIONS_MAX}
        )

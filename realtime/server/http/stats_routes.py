"""How the server is, for the page and for its operator; read only, and behind the key.

    GET /v1/stats                 the engine's books, this process, the last warnings
    GET /v1/realtime/sessions     the tenant's sessions, the youngest first

Totals of the engine are every tenant's, but not for client secrets; warnings are shown where all
keys are one tenant's. A client secret lists the sessions that began under it, or the one whose
`resume_token` is in the query.
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
"""How long a look waits for the engine; without its answer it is said to be away."""
LISTED_SESSIONS_MAX = 200
"""In one list."""


class ServerStats(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["server.stats"] = "server.stats"
    model: str
    device: str
    dtype: str
    max_model_len: int
    page_size: int
    up_s: float
    sessions: int
    """Open conversations of this process."""
    engine: EngineStats | None
    """None: it does not answer, for it starts again."""
    warnings: tuple[LoggedWarning, ...]


class StatsRoutes:
    def __init__(
        self,
        engine: EngineClient,
        registry: Registry,
        authenticator: Authenticator,
        recent_warnings: RecentWarnings,
        *,
        show_warnings: bool,
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
        guest = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(guest, Response):
            return guest
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                books = await self._engine.stats()
        except (EngineError, TimeoutError):
            books = None
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
                engine=books,
                warnings=self._recent_warnings.warnings if self._show_warnings else (),
            )
        )

    async def list_sessions(self, request: Request) -> Response:
        guest = replies.authenticate(self._authenticator, request)
        if isinstance(guest, Response):
            return guest
        own = self._registry.list_sessions(guest.tenant, access_of(guest, request))
        infos: dict[str, SessionInfo] = {}
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT_S):
                infos = {info.session: info for info in await self._engine.list_sessions()}
        except (EngineError, TimeoutError):
            pass  # where their KV is nobody knows now
        data = [
            {"id": one.id, "object": "realtime.session", **one.status_from(infos).fields()}
            for one in own[: -LISTED_SESSIONS_MAX - 1 : -1]
        ]
        return replies.json_response(
            {"object": "list", "data": data, "has_more": len(own) > LISTED_SESSIONS_MAX}
        )

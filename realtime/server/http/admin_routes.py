"""Control of this gateway, for operators. All requests need a key with the scope `admin`.

    GET    /v1/admin/sessions            the sessions in this process, of all tenants, newest first
    POST   /v1/admin/sessions/ID/evict   unload a session from memory; it stays in the store
    DELETE /v1/admin/sessions/ID         end a session, and delete it from the store
    POST   /v1/admin/drain               stop this gateway, as SIGTERM does

A server that requires no key serves them on loopback only.
"""

import logging
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import EngineClient
from continuo.realtime.errors import Refusal
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.stats_routes import LISTED_SESSIONS_MAX, find_engine_infos

log = logging.getLogger(__name__)


class AdminRoutes:
    """Routes for operators."""

    def __init__(
        self,
        engine: EngineClient,
        registry: Registry,
        authenticator: Authenticator,
        drain: Callable[[], None],
        *,
        is_loopback: bool,
    ) -> None:
        """Args:
        engine: whose sessions are listed and evicted.
        registry: whose sessions are closed.
        authenticator: demands the scope admin.
        drain: begins to stop this gateway.
        is_loopback: whether only this machine reaches the gateway.
        """
        self._engine = engine
        self._registry = registry
        self._authenticator = authenticator
        self._drain = drain
        self._is_loopback = is_loopback

    def routes(self) -> list[Route]:
        one = "/v1/admin/sessions/{id}"
        return [
            Route("/v1/admin/sessions", self.list_sessions, methods=["GET"]),
            Route(f"{one}/evict", self.evict, methods=["POST"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route("/v1/admin/drain", self.drain, methods=["POST"]),
        ]

    async def list_sessions(self, request: Request) -> Response:
        if (denied := self._denial_if_any(request)) is not None:
            return denied
        entries = sorted(self._registry.open_sessions, key=lambda entry: -entry.created_s)
        listed = entries[:LISTED_SESSIONS_MAX]
        infos = await find_engine_infos(self._engine, [entry.session for entry in listed])
        now = time.time()
        data = [
            {
                "id": entry.session.id,
                "object": "realtime.session",
                "tenant": entry.owner.tenant,
                "is_connected": entry.close_connection is not None,
                "age_s": round(max(now - entry.created_s, 0.0), 1),
                **entry.session.status_from(infos).fields(),
            }
            for entry in listed
        ]
        return replies.json_response(
            {"object": "list", "data": data, "has_more": len(entries) > LISTED_SESSIONS_MAX}
        )

    async def evict(self, request: Request) -> Response:
        if (denied := self._denial_if_any(request)) is not None:
            return denied
        session_id: str = request.path_params["id"]
        if not await self._registry.evict(session_id):
            return _not_found(session_id)
        log.warning("session %s was evicted by an operator", session_id)
        return replies.json_response(
            {"id": session_id, "object": "realtime.session", "evicted": True}
        )

    async def delete(self, request: Request) -> Response:
        if (denied := self._denial_if_any(request)) is not None:
            return denied
        session_id: str = request.path_params["id"]
        entry = self._registry.open_sessions.get(session_id)
        try:
            if entry is None or not await self._registry.delete(session_id, entry.owner.tenant):
                return _not_found(session_id)
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        log.warning("session %s was deleted by an operator", session_id)
        return replies.json_response(
            {"id": session_id, "object": "realtime.session", "deleted": True}
        )

    async def drain(self, request: Request) -> Response:
        if (denied := self._denial_if_any(request)) is not None:
            return denied
        log.warning("an operator has asked this gateway to drain")
        self._drain()
        return replies.json_response({"object": "server.drain", "draining": True}, 202)

    def _denial_if_any(self, request: Request) -> Response | None:
        credentials = replies.authenticate_full_key(self._authenticator, request, "admin")
        if isinstance(credentials, Response):
            return credentials
        if self._is_loopback or self._authenticator.policy.requires_key:
            return None
        return replies.error_response(
            403,
            "insufficient_scope",
            "This server requires no key and is reachable from other machines: start it with an "
            "API key to administer it.",
        )


def _not_found(session_id: str) -> Response:
    message = f"The session with id '{session_id[:200]}' is not in this process."
    return replies.error_response(404, "session_not_found", message, "id")

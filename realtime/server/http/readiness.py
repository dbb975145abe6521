"""Readiness gate: the ASGI application in front of the real one, with the health endpoints.

    GET /health/live     this process runs its event loop
    GET /health/ready    new sessions are accepted: engine and store are available, and the server
                         is not draining; /ready is the same

The endpoints need no key and reveal nothing of the model or its sessions. Other requests are held
for a while until model and store are ready, and refused while the server is draining.
"""

import asyncio
import math
from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import State
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from continuo.realtime.server import replies

STARTUP_WAIT_S_MAX = 30.0
"""How long a request is held for the first engine; then 503."""
RETRY_AFTER_S = 2.0
HEALTH_PATHS = ("/health/live", "/health/ready", "/ready")


class EngineReadiness(Protocol):
    @property
    def is_accepting_sessions(self) -> bool: ...


class StoreReadiness(Protocol):
    @property
    def is_available(self) -> bool: ...


class ReadinessGate:
    """An ASGI application that holds requests until `set_app`, and refuses them while draining."""

    def __init__(self, *, wait_s_max: float = STARTUP_WAIT_S_MAX) -> None:
        self.state = State()
        self.is_draining = False
        """Whether new requests are refused; open connections continue."""
        self._app: Starlette | None = None
        self._engines: EngineReadiness | None = None
        self._store: StoreReadiness | None = None
        self._app_set = asyncio.Event()
        self._wait_s_max = wait_s_max

    def set_app(self, app: Starlette, engines: EngineReadiness, store: StoreReadiness) -> None:
        """Pass requests on to `app` from now on."""
        self._app, self._engines, self._store = app, engines, store
        self.state = app.state
        self._app_set.set()

    @property
    def status(self) -> str:
        """`ready`, or why the server is not."""
        if self.is_draining:
            return "draining"
        if self._engines is None or self._store is None:
            return "starting"
        if not self._engines.is_accepting_sessions:
            return "no_engine"
        return "ready" if self._store.is_available else "no_store"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        if scope["type"] == "http" and scope["path"] in HEALTH_PATHS:
            response = self._health_response(scope["path"])
        else:
            if self._app is None and not self.is_draining:
                await self._wait_for_app()
            if self._app is not None and not self.is_draining:
                await self._app(scope, receive, send)
                return
            response = self._unavailable_response()
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)

    async def _wait_for_app(self) -> None:
        try:
            await asyncio.wait_for(self._app_set.wait(), self._wait_s_max)
        except TimeoutError:
            return

    def _health_response(self, path: str) -> Response:
        if path == "/health/live":
            return replies.json_response({"status": "alive"})
        return replies.json_response(
            {"status": self.status}, 200 if self.status == "ready" else 503
        )

    def _unavailable_response(self) -> Response:
        state = "stopping" if self.is_draining else "not ready yet"
        response = replies.error_response(
            503, "server_not_ready", f"The server is {state}. Try again."
        )
        response.headers["Retry-After"] = str(math.ceil(RETRY_AFTER_S))
        return response

"""What stands before the application: the health of the process, and who may come in now.

    GET /health/live     this process runs its event loop
    GET /health/ready    it takes new sessions: engine and store answer, and nobody has asked it
                         to stop; /ready is the same

All are for everyone and say nothing of what is served. While the model is loading, or no engine
has come yet, others wait for a while; when the server is stopping they are sent away.
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
"""For the first engine; then 503."""
RETRY_AFTER_S = 2.0
HEALTH_PATHS = ("/health/live", "/health/ready", "/ready")


class EngineReadiness(Protocol):
    @property
    def is_accepting_sessions(self) -> bool: ...


class StoreReadiness(Protocol):
    @property
    def is_available(self) -> bool: ...


class ReadinessGate:
    """An ASGI application. `open` puts the real one behind it."""

    def __init__(self, *, wait_s_max: float = STARTUP_WAIT_S_MAX) -> None:
        self.state = State()
        self.is_draining = False
        """Nobody new comes in; who is there goes on."""
        self._app: Starlette | None = None
        self._engines: EngineReadiness | None = None
        self._store: StoreReadiness | None = None
        self._app_set = asyncio.Event()
        self._wait_s_max = wait_s_max

    def set_app(self, app: Starlette, engines: EngineReadiness, store: StoreReadiness) -> None:
        self._app, self._engines, self._store = app, engines, store
        self.state = app.state
        self._app_set.set()

    @property
    def status(self) -> str:
        """`ready`, or why it is not."""
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
        why = "stopping" if self.is_draining else "not ready yet"
        response = replies.error_response(
            503, "server_not_ready", f"The server is {why}. Try again."
        )
        response.headers["Retry-After"] = str(math.ceil(RETRY_AFTER_S))
        return response

"""Readiness gate: the ASGI application in front of the web application, with health endpoints.

    GET /health/live     200 if this process runs its event loop
    GET /health/ready    200 if new sessions are accepted (engine and store are available, and the
                         server is not draining, and the store has all sessions), else 503; /ready
                         is the same

The endpoints need no key and reveal nothing of the model or its sessions. Other requests wait until
model and store are loaded, at most STARTUP_WAIT_S_MAX, and are refused while the server drains,
except that metrics can be scraped; each response then closes its connection. Pages of allowed
origins can read every response (CORS).
"""

import asyncio
import math
from functools import partial
from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import State
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from continuo.realtime.server import replies
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.auth.gate import is_origin_allowed
from continuo.realtime.server.http.cross_origin import CrossOrigin
from continuo.realtime.server.http.root_path import (
    is_root_without_slash,
    strip_root_path,
    strip_trailing_slash,
)

STARTUP_WAIT_S_MAX = 30.0
"""Maximum time that a request waits for the server to start; then the response is 503."""
RETRY_AFTER_S = 2.0
HEALTH_PATHS = ("/health/live", "/health/ready", "/ready")
METRICS_PATH = "/metrics"


class EngineReadiness(Protocol):
    @property
    def is_accepting_sessions(self) -> bool: ...


class StoreReadiness(Protocol):
    @property
    def is_available(self) -> bool: ...


class RecoveryReadiness(Protocol):
    @property
    def is_recovering(self) -> bool: ...


class ReadinessGate:
    """An ASGI application that holds requests until `set_app`, and refuses them while draining."""

    def __init__(
        self,
        policy: AccessPolicy,
        *,
        wait_s_max: float = STARTUP_WAIT_S_MAX,
        root_path: str = "",
    ) -> None:
        """`policy`: the origins to allow until `set_app`. `root_path`: path prefix of this server
        at a proxy; empty: none."""
        self.state = State({"is_origin_allowed": partial(is_origin_allowed, policy=policy)})
        self._root_path = root_path
        self.is_draining = False
        """Whether new requests are refused; open connections continue."""
        self._app: Starlette | None = None
        self._engines: EngineReadiness | None = None
        self._store: StoreReadiness | None = None
        self._recovery: RecoveryReadiness | None = None
        self._app_set = asyncio.Event()
        self._wait_s_max = wait_s_max

    def set_app(
        self,
        app: Starlette,
        engines: EngineReadiness,
        store: StoreReadiness,
        recovery: RecoveryReadiness,
    ) -> None:
        """Forward requests to `app` from now on; report the readiness of `engines` and `store`, and
        of the sessions in it."""
        self._app, self._engines, self._store, self._recovery = app, engines, store, recovery
        self.state = app.state
        self._app_set.set()

    @property
    def status(self) -> str:
        """`ready`, or the reason why not: `draining`, `starting`, `no_engine`, `no_store` or
        `recovering`."""
        if self.is_draining:
            return "draining"
        if self._engines is None or self._store is None or self._recovery is None:
            return "starting"
        if not self._engines.is_accepting_sessions:
            return "no_engine"
        if not self._store.is_available:
            return "no_store"
        return "recovering" if self._recovery.is_recovering else "ready"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        if is_root_without_slash(scope, self._root_path):
            await RedirectResponse(f"{self._root_path}/")(scope, receive, send)
            return
        scope = strip_root_path(scope, self._root_path)
        strip_trailing_slash(scope)
        app: ASGIApp
        if scope["type"] == "http" and scope["path"] in HEALTH_PATHS:
            app = self._health_response(scope["path"])
        else:
            if self._app is None and not self.is_draining:
                await self._wait_for_app()
            is_scrape = scope["type"] == "http" and scope["path"] == METRICS_PATH
            if self._app is not None and (is_scrape or not self.is_draining):
                app = self._app
            elif scope["type"] == "http":
                app = self._unavailable_response()
            else:
                websocket = WebSocket(scope, receive, send)
                await websocket.send_denial_response(self._unavailable_response())
                return
        # Also for the response to an unexpected exception, which the application sends outside of
        # its middleware.
        app = CrossOrigin(app, self.state.is_origin_allowed)
        await app(scope, receive, partial(self._send_last, send))

    async def _send_last(self, send: Send, message: Message) -> None:
        """Send a message of a response. While the server drains, its connection closes after it, so
        that the next request of a client or proxy goes to another server."""
        if self.is_draining and message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

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

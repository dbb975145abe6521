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

WAIT_S_MAX = 30.0
"""For the first engine; then 503."""
RETRY_AFTER_S = 2.0
HEALTH = ("/health/live", "/health/ready", "/ready")


class Engines(Protocol):
    @property
    def takes_sessions(self) -> bool: ...


class Stored(Protocol):
    @property
    def there(self) -> bool: ...


class Entrance:
    """An ASGI application. `open` puts the real one behind it."""

    def __init__(self, *, wait_s_max: float = WAIT_S_MAX) -> None:
        self.state = State()
        self.draining = False
        """Nobody new comes in; who is there goes on."""
        self._app: Starlette | None = None
        self._engines: Engines | None = None
        self._store: Stored | None = None
        self._opened = asyncio.Event()
        self._wait_s_max = wait_s_max

    def open(self, app: Starlette, engines: Engines, store: Stored) -> None:
        self._app, self._engines, self._store = app, engines, store
        self.state = app.state
        self._opened.set()

    @property
    def status(self) -> str:
        """`ready`, or why it is not."""
        if self.draining:
            return "draining"
        if self._engines is None or self._store is None:
            return "starting"
        if not self._engines.takes_sessions:
            return "no_engine"
        return "ready" if self._store.there else "no_store"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        if scope["type"] == "http" and scope["path"] in HEALTH:
            response = self._health(scope["path"])
        else:
            if self._app is None and not self.draining:
                await self._patience()
            if self._app is not None and not self.draining:
                await self._app(scope, receive, send)
                return
            response = self._not_now()
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)

    async def _patience(self) -> None:
        try:
            await asyncio.wait_for(self._opened.wait(), self._wait_s_max)
        except TimeoutError:
            return

    def _health(self, path: str) -> Response:
        if path == "/health/live":
            return replies.json({"status": "alive"})
        return replies.json({"status": self.status}, 200 if self.status == "ready" else 503)

    def _not_now(self) -> Response:
        why = "stopping" if self.draining else "not ready yet"
        response = replies.error(503, "server_not_ready", f"The server is {why}. Try again.")
        response.headers["Retry-After"] = str(math.ceil(RETRY_AFTER_S))
        return response

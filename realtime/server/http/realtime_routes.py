"""What is served where.

    WS  /v1/realtime?model=NAME     a conversation (OpenAI Realtime, text)
        &fork=SESSION&at=ITEM[&resume_token=TOKEN]  that begins as another one was after an item
        &session_id=SESSION&last_event_id=EVENT[&resume_token=TOKEN]    that goes on
    GET /v1/models                  what can be talked to
    GET /health                     this process is alive; is its engine?

Only /health is for everyone. A session may be resumed with its resume token alone: with no key, or
a client secret that has expired.
"""

from collections.abc import Callable, Mapping

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.realtime_api import CODECS, JSON
from continuo.realtime.registry.access import Fork, Guest, Return
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Denied, Gate, offered
from continuo.realtime.server.http.model_routes import Models
from continuo.realtime.server.http.served_model import Served
from continuo.realtime.transport import Connection, StarletteSocket


class Routes:
    def __init__(
        self,
        registry: Registry,
        gate: Gate,
        served: Served,
        limits: Limits,
        engine_up: Callable[[], bool],
    ) -> None:
        self._engine_up = engine_up
        self._registry = registry
        self._gate = gate
        self._served = served
        self._limits = limits

    def all(self) -> list[Route | WebSocketRoute]:
        return [
            WebSocketRoute("/v1/realtime", self.realtime),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
        ]

    async def realtime(self, websocket: WebSocket) -> None:
        wish = _wish(websocket.query_params)
        guest = await self._guest(websocket, wish)
        if isinstance(guest, Denied):
            await websocket.send_denial_response(_denial(guest))
            return
        spoken = [CODECS[token] for token in offered(websocket.headers) if token in CODECS]
        await websocket.accept(spoken[0].subprotocol if spoken else None)
        name = websocket.query_params.get("model") or self._served.models[0].id
        socket = StarletteSocket(websocket)
        codec = spoken[0] if spoken else JSON
        known = guest if isinstance(guest, Guest) else None
        connection = Connection(socket, self._registry, self._limits, name, known, wish, codec)
        # Refusals are no HTTP status: the SDKs would try that five times before they show it.
        if isinstance(guest, Refusal):
            await connection.refuse(guest)
        elif self._served.find(name) is None:
            await connection.refuse(self._served.unknown(name))
        else:
            await connection.run()

    async def _guest(
        self, websocket: WebSocket, wish: Fork | Return | None
    ) -> Guest | Denied | Refusal:
        """Check the key, or the resume token in its place. A wrong token is refused like an unknown
        session, before anything else is answered."""
        guest = self._gate.check(websocket.headers)
        if not isinstance(guest, Denied) or not guest.token_will_do:
            return guest
        if not isinstance(wish, Return) or not wish.token:
            return guest
        try:
            return await self._registry.bearer(wish)
        except Refusal as refusal:
            return refusal

    async def models(self, request: Request) -> Response:
        return self._guard(request) or replies.json(Models(data=self._served.models))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        known = self._served.find(name)
        if (denied := self._guard(request)) is not None:
            return denied
        if known is None:
            return replies.refused(self._served.unknown(name))
        return replies.json(known)

    async def health(self, request: Request) -> Response:
        return replies.json({"status": "ok", "engine": "up" if self._engine_up() else "restarting"})

    def _guard(self, request: HTTPConnection) -> Response | None:
        guest = self._gate.check(request.headers)
        return _denial(guest) if isinstance(guest, Denied) else None


def _wish(query: Mapping[str, str]) -> Fork | Return | None:
    if session_id := query.get("session_id"):
        return Return(session_id, query.get("last_event_id"), query.get("resume_token"))
    if source := query.get("fork"):
        return Fork(source, query.get("at"), query.get("resume_token"))
    return None


def _denial(denied: Denied) -> Response:
    return replies.error(denied.status, denied.code, denied.message)

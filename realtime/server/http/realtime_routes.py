"""Routes of the Realtime API, the models and /health.

    WS  /v1/realtime?model=NAME     a session (OpenAI Realtime, text)
        &fork=SESSION&at=ITEM[&resume_token=TOKEN]                      a fork after an item
        &session_id=SESSION&last_event_id=EVENT[&resume_token=TOKEN]    a resumed session
    GET /v1/models[/NAME]           the served models
    GET /health                     whether this process responds; `engine`: `up` or `restarting`

Only /health needs no key. A session may be resumed with its resume token alone: without a key, or
with a client secret that has expired.
"""

from collections.abc import Callable, Mapping

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.realtime_api import BETA_SUBPROTOCOL, SUBPROTOCOL
from continuo.realtime.protocol.validation import unsupported_parameter, unsupported_value
from continuo.realtime.registry.access import Credentials, ForkRequest, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator, Denied, offered_subprotocols
from continuo.realtime.server.auth.open_connections import OpenConnections
from continuo.realtime.server.http.model_routes import ModelList
from continuo.realtime.server.http.served_model import ServedModels
from continuo.realtime.server.security_log import security_log
from continuo.realtime.transport import Connection, StarletteSocket


class RealtimeRoutes:
    """Routes of the Realtime API, the models and /health."""

    def __init__(
        self,
        registry: Registry,
        authenticator: Authenticator,
        open_connections: OpenConnections,
        served_models: ServedModels,
        limits: Limits,
        is_engine_up: Callable[[], bool],
    ) -> None:
        """Args:
        registry: opens and resumes sessions.
        authenticator: names the tenant of an upgrade.
        open_connections: closes those of a key that is revoked.
        served_models: the names that a client may give.
        limits: on connections and frames.
        is_engine_up: whether an engine is available, for the status.
        """
        self._is_engine_up = is_engine_up
        self._registry = registry
        self._authenticator = authenticator
        self._open_connections = open_connections
        self._served_models = served_models
        self._limits = limits

    def routes(self) -> list[Route | WebSocketRoute]:
        return [
            WebSocketRoute("/v1/realtime", self.connect),
            Route("/v1/realtime", replies.upgrade_required),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.get_model),
            Route("/health", self.get_health),
        ]

    async def connect(self, websocket: WebSocket) -> None:
        session_request = _session_request_of(websocket.query_params)
        authenticated = await self._authenticate(websocket, session_request)
        if isinstance(authenticated, Denied):
            replies.report_denial(authenticated, websocket)
            await websocket.send_denial_response(replies.denial_response(authenticated))
            return
        if isinstance(authenticated, Credentials):
            replies.charge_input_of(websocket, authenticated)
        else:
            security_log.report("resume_token", websocket.client)
        is_offered = SUBPROTOCOL in offered_subprotocols(websocket.headers)
        await websocket.accept(SUBPROTOCOL if is_offered else None)
        name = websocket.query_params.get("model") or self._served_models.models[0].id
        socket = StarletteSocket(websocket)
        credentials = authenticated if isinstance(authenticated, Credentials) else None
        connection = Connection(
            socket,
            self._registry,
            self._limits,
            name,
            credentials,
            session_request,
            announces_beta=_announces_beta(websocket),
        )
        # A refusal is sent as an event: the SDKs retry an HTTP error five times before they report
        # it.
        if isinstance(authenticated, Refusal):
            await connection.refuse(authenticated)
        elif (unsupported := _find_unsupported(websocket)) is not None:
            await connection.refuse(unsupported)
        elif self._served_models.find(name) is None:
            await connection.refuse(self._served_models.unknown_model(name))
        else:
            try:
                async with self._open_connections.track(
                    authenticated, connection.close, connection.cancel_responses
                ):
                    await connection.run()
            except Refusal as refusal:
                await connection.refuse(refusal)

    async def _authenticate(
        self, websocket: WebSocket, session_request: ForkRequest | ResumeRequest | None
    ) -> Credentials | Denied | Refusal:
        """Return the credentials of the key or, if a resume token may replace it, of that token.

        Returns Denied without a valid key or a token; a Refusal if the token is wrong, the same as
        for an unknown session.
        """
        authenticated = self._authenticator.authenticate(
            websocket.headers, "converse", replies.host_of(websocket)
        )
        if not isinstance(authenticated, Denied) or not authenticated.accepts_resume_token:
            return authenticated
        if not isinstance(session_request, ResumeRequest) or not session_request.token:
            return authenticated
        try:
            credentials = await self._registry.credentials_of_token(session_request)
        except Refusal as refusal:
            return refusal
        is_allowed = self._authenticator.may_resume_by_token(credentials)
        return credentials if is_allowed else authenticated

    async def list_models(self, request: Request) -> Response:
        return self._denial_if_any(request) or replies.json_response(
            ModelList(data=self._served_models.models)
        )

    async def get_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        known = self._served_models.find(name)
        if (denied := self._denial_if_any(request)) is not None:
            return denied
        if known is None:
            return replies.refusal_response(self._served_models.unknown_model(name))
        return replies.json_response(known)

    async def get_health(self, _request: Request) -> Response:
        return replies.json_response(
            {"status": "ok", "engine": "up" if self._is_engine_up() else "restarting"}
        )

    def _denial_if_any(self, request: HTTPConnection) -> Response | None:
        authenticated = self._authenticator.authenticate(
            request.headers, client_host=replies.host_of(request)
        )
        if not isinstance(authenticated, Denied):
            return None
        replies.report_denial(authenticated, request)
        return replies.denial_response(authenticated)


def _session_request_of(query: Mapping[str, str]) -> ForkRequest | ResumeRequest | None:
    if session_id := query.get("session_id"):
        return ResumeRequest(session_id, query.get("last_event_id"), query.get("resume_token"))
    if source := query.get("fork"):
        return ForkRequest(source, query.get("at"), query.get("resume_token"))
    return None


def _find_unsupported(websocket: WebSocket) -> Refusal | None:
    """Find what a connection asks for that this server does not have, as a Refusal."""
    query = websocket.query_params
    if query.get("intent") == "transcription":
        return unsupported_value("intent", "this server has no audio, so it cannot transcribe")
    if "call_id" in query:
        return unsupported_parameter("call_id", "this server has no WebRTC or SIP calls")
    return None


def _announces_beta(websocket: WebSocket) -> bool:
    """Whether a client announces the beta version of the Realtime API. Proxies announce it too, on
    behalf of clients that use the GA version."""
    announced = websocket.headers.get("openai-beta", "")
    return "realtime=v1" in announced or BETA_SUBPROTOCOL in offered_subprotocols(websocket.headers)

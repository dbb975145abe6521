"""Request observer: the outermost ASGI application. Gives each request and connection an id, counts
it, and logs a line when it has ended.

The id is the client's `x-request-id`, if that is a plain token, else a generated one; it is in the
response headers. The line has method, path, status, error code, tenant, session, duration and id:
nothing that users write, no query and no header.
"""

import logging
import re
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from continuo.realtime import metrics
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.request_context import RequestContext, begin_request
from continuo.realtime.server.security_log import security_log

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.{0,64}")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
_ACCEPTED = 101
"""Status of a WebSocket upgrade that was accepted."""
_MALFORMED = (1002, CloseCode.INVALID_DATA, CloseCode.MESSAGE_TOO_BIG)
"""Close codes after frames that no client of ours sends."""
_NO_RESPONSE = 499
"""Stands for the status of a request whose client disconnected before the response; as in nginx."""
_QUIET_PATHS = ("/health", "/health/live", "/health/ready", "/ready", "/metrics")
"""Paths that monitoring requests every few seconds; logged at debug level."""


class RequestObserver:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        context = _make_context(scope["headers"])
        begin_request(context)

        async def send_with_id(message: Message) -> None:
            if message["type"] in _STARTS:
                context.status = message.get("status", _ACCEPTED)
                if context.status == _ACCEPTED:
                    metrics.connections.labels(_route(scope)).inc()
                headers = [*message.get("headers", ()), (b"x-request-id", context.id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if context.status == _ACCEPTED:
                metrics.connections.labels(_route(scope)).dec()
            _record(scope, context, time.perf_counter() - began_s)


def _make_context(headers: Iterable[tuple[bytes, bytes]]) -> RequestContext:
    context = RequestContext("")
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            context.id = value.decode()
        elif name == b"traceparent" and _TRACEPARENT.fullmatch(value):
            context.traceparent = value.decode("latin-1")
    context.id = context.id or generate_id("req")
    return context


def _record(scope: Scope, context: RequestContext, seconds: float) -> None:
    method, status = scope.get("method", "WEBSOCKET"), context.status or _NO_RESPONSE
    metrics.requests.labels(
        method if method in _METHODS or method == "WEBSOCKET" else "other",
        _route(scope),
        status,
    ).inc()
    if context.close_code in _MALFORMED:
        security_log.report("malformed_frames", scope.get("client"), close_code=context.close_code)
    level = logging.DEBUG if scope["path"] in _QUIET_PATHS else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields: dict[str, object] = {
        "method": method,
        "path": scope["path"][:200],
        "status": status,
        "code": context.error_code or None,
        "close_code": context.close_code or None,
        "ms": round(seconds * 1000, 1),
    }
    is_connection = scope["type"] == "websocket"
    log.log(level, "connection" if is_connection else "request", extra={"fields": fields})


def _route(scope: Scope) -> str:
    """Return the path with its parameters replaced by their names, so that there are few of them,
    whatever clients send. Paths without a route are one."""
    path: str = scope["path"]
    if "endpoint" not in scope:
        return path if path in _QUIET_PATHS else "unmatched"
    shown = ""
    for name, value in reversed(scope.get("path_params", {}).items()):
        # The last parameter ends last. Its value is a whole segment, or several.
        segment = f"/{value}/"
        at = f"{path}/".rfind(segment)
        if at < 0:
            return "unmatched"
        shown = f"/{{{name}}}{path[at + len(segment) - 1 :]}{shown}"
        path = path[:at]
    return path + shown

"""Cross-origin resource sharing (CORS): lets pages of allowed origins use the HTTP endpoints.

Only allowed origins get the headers with which a browser shows a response to its page. Cookies are
never used, so no response allows credentials.
"""

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from continuo.realtime.server import replies

METHODS = "GET, POST, DELETE, OPTIONS"
EXPOSED_HEADERS = "Retry-After, X-Request-Id"
PREFLIGHT_MAX_AGE_S = 600
"""Time for which a browser may cache the answer to a preflight request."""

IsOriginAllowed = Callable[[Headers], bool]
"""Decides on a request by its headers; True if it has no Origin."""


class CrossOrigin:
    """ASGI middleware that answers preflight requests and adds CORS headers to HTTP responses."""

    def __init__(self, app: ASGIApp, is_origin_allowed: IsOriginAllowed) -> None:
        self._app = app
        self._is_origin_allowed = is_origin_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin if origin is not None and self._is_origin_allowed(headers) else None
        is_preflight = (
            origin is not None
            and scope["method"] == "OPTIONS"
            and "access-control-request-method" in headers
        )
        app = _preflight_response(allowed, headers) if is_preflight else self._app

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), allowed)
            await send(message)

        await app(scope, receive, send_with_headers)


def _preflight_response(allowed: str | None, headers: Headers) -> Response:
    if allowed is None:
        return replies.origin_not_allowed_response()
    requested = headers.get("access-control-request-headers", "Authorization, Content-Type")
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": requested,
            "Access-Control-Max-Age": str(PREFLIGHT_MAX_AGE_S),
        },
    )


def _add_headers(headers: MutableHeaders, allowed: str | None) -> None:
    headers.add_vary_header("Origin")
    if allowed is not None:
        headers["Access-Control-Allow-Origin"] = allowed
        headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS

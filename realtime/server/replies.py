"""HTTP responses, and errors in the shape of OpenAI's."""

import math

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from continuo.realtime.errors import ErrorType, Refusal, internal_error
from continuo.realtime.registry.access import Credentials
from continuo.realtime.server.auth.gate import Authenticator, Denied


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_response(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    kind: ErrorType = "invalid_request_error",
) -> Response:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return json_response(body, status)


def refusal_response(refusal: Refusal) -> Response:
    response = error_response(
        refusal.http_status, refusal.code, refusal.message, refusal.param, refusal.kind
    )
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    return response


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with 404 to any request, as an ASGI application."""
    response = error_response(404, "not_found", f"There is nothing at {scope['path'][:200]}.")
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


def internal_error_response(_request: Request, _error: Exception) -> Response:
    """Return the response for an unexpected exception, which the caller logs."""
    return refusal_response(internal_error())


def authenticate(
    authenticator: Authenticator, connection: HTTPConnection
) -> Credentials | Response:
    """Return the credentials of a request, for endpoints that accept full keys and client secrets
    alike. Returns the error response if the request is denied."""
    credentials = authenticator.authenticate(connection.headers)
    if isinstance(credentials, Denied):
        return error_response(credentials.status, credentials.code, credentials.message)
    return credentials


def authenticate_full_key(
    authenticator: Authenticator, connection: HTTPConnection
) -> Credentials | Response:
    """Return the credentials of a request with a full key. Returns the error response if the
    request is denied, or has a client secret."""
    credentials = authenticate(authenticator, connection)
    is_ephemeral = isinstance(credentials, Credentials) and credentials.is_ephemeral
    return ephemeral_key_response() if is_ephemeral else credentials


def ephemeral_key_response() -> Response:
    return error_response(403, "ephemeral_key", "A client secret is not valid for this request.")

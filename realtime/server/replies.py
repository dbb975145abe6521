"""HTTP responses, and errors in the shape of OpenAI's."""

import math

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from continuo.realtime import metrics
from continuo.realtime.errors import ErrorType, Refusal, internal_error
from continuo.realtime.generation.error_mapping import RETRY_AFTER_S
from continuo.realtime.protocol.response import ResponseError
from continuo.realtime.registry.access import Credentials
from continuo.realtime.registry.access import Scope as KeyScope
from continuo.realtime.request_context import current_request, name_tenant
from continuo.realtime.server.auth.gate import (
    ORIGIN_DENIED,
    Authenticator,
    Denied,
)
from continuo.realtime.server.incoming_budget import charge_input
from continuo.realtime.server.security_log import security_log
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.tenants import Tenants


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_response(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    kind: ErrorType | None = None,
) -> Response:
    """Build an error response. `kind`: by default `server_error` for a status of 500 and above."""
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    count_refusal(code)
    refusal = Refusal(message, code=code, param=param, kind=kind)
    response = json_response({"error": error_fields(refusal)}, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def error_fields(refusal: Refusal) -> dict[str, str | None]:
    """Return the fields of an error object."""
    return {
        "message": refusal.message,
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.code,
    }


def count_refusal(code: str) -> None:
    """Count an error response, and note its code for the log line of the request."""
    metrics.refusals.labels(code).inc()
    current_request().error_code = code


def refusal_response(refusal: Refusal) -> Response:
    response = error_response(
        refusal.http_status, refusal.code, refusal.message, refusal.param, refusal.kind
    )
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    return response


def failure_response(error: ResponseError | None, body: object) -> Response:
    """Build the response for a turn that has failed with `error`: 503 if the engine or the store
    was away or busy, else 500. `body`: the error as the API of the request encodes it."""
    if error is None or not error.is_transient:
        return json_response(body, 500)
    response = json_response(body, 503)
    response.headers["Retry-After"] = str(math.ceil(RETRY_AFTER_S))
    return response


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with 404 to any request, as an ASGI application."""
    response = error_response(404, "not_found", f"There is nothing at {scope['path'][:200]}.")
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


def method_not_allowed(request: Request, _error: Exception) -> Response:
    """Return the response for a method that no route of the path accepts."""
    scope, routes = request.scope, request.app.routes
    accepted = {
        method
        for route in routes
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    allowed = ", ".join(sorted(accepted))
    response = error_response(
        405,
        code="method_not_allowed",
        message=f"{request.method[:16]} is not allowed at {request.url.path[:200]}, which accepts "
        f"{allowed}.",
    )
    response.headers["Allow"] = allowed
    return response


async def upgrade_required(request: Request) -> Response:
    """Respond with 426 to a GET of a WebSocket endpoint that is not an upgrade."""
    response = error_response(
        426,
        code="upgrade_required",
        message=f"{request.url.path[:200]} is a WebSocket, and this request has no header "
        "'Upgrade: websocket'. If the client sent one, a proxy between it and this server has "
        "removed it: configure the proxy to forward Upgrade and Connection (docs/clients.md).",
    )
    response.headers["Upgrade"] = "websocket"
    response.headers["Connection"] = "Upgrade"
    return response


def denial_response(denied: Denied) -> Response:
    response = error_response(denied.status, denied.code, denied.message)
    if denied.retry_after_s is not None:
        response.headers["Retry-After"] = str(denied.retry_after_s)
    return response


def origin_not_allowed_response() -> Response:
    return denial_response(ORIGIN_DENIED)


async def embeddings_not_found(_request: Request) -> Response:
    """Respond with 404 to a request for embeddings, which other servers have."""
    return error_response(
        404,
        code="not_found",
        message="This server generates text and has no embeddings. Send embedding requests to a "
        "server of an embedding model, for example vLLM or text-embeddings-inference.",
    )


def internal_error_response(_request: Request, _error: Exception) -> Response:
    """Return the response for an unexpected exception, which the caller logs."""
    return refusal_response(internal_error())


def authenticate(
    authenticator: Authenticator, connection: HTTPConnection, scope: KeyScope = "converse"
) -> Credentials | Response:
    """Return the credentials of a request, for endpoints that accept full keys and client secrets
    alike, and store them in `connection.state`. Charges an HTTP request to its tenant. Returns the
    error response if the request is denied or refused."""
    credentials = authenticator.authenticate(connection.headers, scope, host_of(connection))
    if isinstance(credentials, Denied):
        report_denial(credentials, connection)
        return denial_response(credentials)
    connection.state.credentials = credentials
    name_tenant(credentials.tenant)
    ledger = charge_input_of(connection, credentials)
    if scope != "admin" and isinstance(connection, Request):
        try:
            ledger.admit_operation()
        except Refusal as refusal:
            return refusal_response(refusal)
    return credentials


def charge_input_of(connection: HTTPConnection, credentials: Credentials) -> TenantLedger:
    """Charge to its tenant what arrives with a request or over a WebSocket. Returns the ledger."""
    tenants: Tenants = connection.app.state.tenants
    ledger = tenants.of(credentials.tenant).ledger
    charge_input(connection.scope, ledger)
    return ledger


def authenticate_full_key(
    authenticator: Authenticator, connection: HTTPConnection, scope: KeyScope = "converse"
) -> Credentials | Response:
    """Return the credentials of a request with a full key. Returns the error response if the
    request is denied, or has a client secret."""
    credentials = authenticator.authenticate(connection.headers)  # counts no wrong key
    if isinstance(credentials, Credentials) and credentials.is_ephemeral:
        security_log.report("ephemeral_key", connection.client)
        return ephemeral_key_response()
    return authenticate(authenticator, connection, scope)


def report_denial(denied: Denied, connection: HTTPConnection) -> None:
    """Report a wrong key or a foreign origin as a security event. A request without a key, or one
    that its key does not permit, is none."""
    if denied.event:
        security_log.report(denied.event, connection.client)


def host_of(connection: HTTPConnection) -> str | None:
    """Return the address of the client, without its port."""
    return connection.client.host if connection.client is not None else None


def ephemeral_key_response() -> Response:
    return error_response(403, "ephemeral_key", "A client secret is not valid for this request.")

"""Answers over HTTP, and errors in the shape of OpenAI's."""

import math

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from continuo.realtime.errors import Fault, Refusal, bug
from continuo.realtime.registry.access import Guest
from continuo.realtime.server.auth.gate import Denied, Gate


def json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    kind: Fault = "invalid_request_error",
) -> Response:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return json(body, status)


def refused(refusal: Refusal) -> Response:
    response = error(refusal.status, refusal.code, refusal.message, refusal.param, refusal.kind)
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    return response


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application: what is asked for a path that there is not."""
    unknown = error(404, "not_found", f"There is nothing at {scope['path'][:200]}.")
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(unknown)
    else:
        await unknown(scope, receive, send)


def broke(request: Request, error: Exception) -> Response:
    """A bug of ours; whoever calls this logs it."""
    return refused(bug())


def known(gate: Gate, connection: HTTPConnection) -> Guest | Response:
    """Admit any key, for conversations and for requests about a client's own sessions."""
    guest = gate.check(connection.headers)
    if isinstance(guest, Denied):
        return error(guest.status, guest.code, guest.message)
    return guest


def admitted(gate: Gate, connection: HTTPConnection) -> Guest | Response:
    """Admit full keys alone, for all requests but those of conversations."""
    guest = known(gate, connection)
    return ephemeral() if isinstance(guest, Guest) and guest.ephemeral else guest


def ephemeral() -> Response:
    return error(403, "ephemeral_key", "A client secret is not good for this.")

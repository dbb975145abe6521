"""Answers over HTTP, and errors in the shape of OpenAI's."""

import math

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from realtime.errors import Fault, Refusal
from realtime.server.auth import Denied, Gate
from realtime.session import Guest


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


_STATUS = {"model_not_found": 404, "response_not_found": 404, "body_too_large": 413}


def refused(refusal: Refusal, status: int = 400) -> Response:
    """A fault of ours is one that may be gone later."""
    status = 503 if refusal.kind == "server_error" else _STATUS.get(refusal.code, status)
    if refusal.retry_after_s is None:
        return error(status, refusal.code, refusal.message, refusal.param, refusal.kind)
    if refusal.kind != "server_error":
        status = 429
    response = error(status, refusal.code, refusal.message, refusal.param, refusal.kind)
    response.headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    return response


def admitted(gate: Gate, connection: HTTPConnection) -> Guest | Response:
    """For all but conversations: a browser's key opens those, nothing else."""
    guest = gate.check(connection.headers)
    if isinstance(guest, Denied):
        return error(guest.status, guest.code, guest.message)
    if guest.ephemeral:
        return error(403, "ephemeral_key", "A client secret is not good for this.")
    return guest

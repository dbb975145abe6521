"""Answers over HTTP, and errors in the shape of OpenAI's."""

import msgspec
from starlette.responses import Response

from realtime.errors import Fault, Refusal


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


def refused(refusal: Refusal, status: int = 400) -> Response:
    """A fault of ours is one that may be gone later."""
    status = 503 if refusal.kind == "server_error" else status
    return error(status, refusal.code, refusal.message, refusal.param, refusal.kind)

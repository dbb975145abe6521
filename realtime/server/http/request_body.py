"""Bodies of HTTP requests."""

from starlette.requests import ClientDisconnect, Request

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.complexity_limits import check_body_complexity
from continuo.realtime.server.hardening.incoming_budget import release_share
from continuo.realtime.transport import run_paced


async def read_body(request: Request, limit: int) -> bytes:
    """Read a body of at most `limit` bytes that is not too complex to decode. Raises Refusal."""
    try:
        body = await _read_whole(request, limit)
        await run_paced(check_body_complexity(body, "body"))
    finally:
        release_share(request.scope)  # the caller decodes the body at once
    return body


async def _read_whole(request: Request, limit: int) -> bytes:
    """Read the whole body. Raises Refusal, before a byte is read if Content-Length is too long."""
    body = bytearray()
    try:
        _check_size(_content_length(request), limit)
        async for chunk in request.stream():
            body += chunk
            _check_size(len(body), limit)
    except ClientDisconnect:
        raise Refusal("The body is incomplete.", code="invalid_json") from None
    return bytes(body)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Refusal(f"The body is over {limit:,} bytes.", code="body_too_large")


def _content_length(request: Request) -> int:
    """The Content-Length of the request. Returns 0 without one; the parser accepts only numbers."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else 0

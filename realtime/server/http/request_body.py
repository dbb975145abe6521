"""Bodies of HTTP requests."""

from starlette.requests import ClientDisconnect, Request

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.complexity_limits import BodyComplexity
from continuo.realtime.server.incoming_budget import release_share


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request. Raises Refusal if it is over `limit` bytes, incomplete, or too
    complex to decode."""
    try:
        return await _read_whole(request, limit)
    finally:
        release_share(request.scope)  # no longer charged: the caller decodes the body at once


async def _read_whole(request: Request, limit: int) -> bytes:
    """Read the whole body. Raises Refusal if it is incomplete, and as soon as it is over `limit`
    bytes or too complex; if Content-Length is over the limit, before reading."""
    chunks: list[bytes] = []
    size, complexity = 0, BodyComplexity("body")
    try:
        _check_size(_content_length(request), limit)
        async for chunk in request.stream():
            chunks.append(chunk)
            size += len(chunk)
            _check_size(size, limit)
            complexity.feed(chunk)
    except ClientDisconnect:
        raise Refusal("The body is incomplete.", code="invalid_json") from None
    return b"".join(chunks)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Refusal(f"The body is over {limit:,} bytes.", code="body_too_large")


def _content_length(request: Request) -> int:
    """Return the Content-Length of the request, or 0 without one. The HTTP parser has refused any
    value that is not a number."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else 0

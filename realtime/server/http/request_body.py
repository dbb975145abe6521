"""Bodies of HTTP requests."""

from starlette.requests import ClientDisconnect, Request

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.complexity_limits import check_body_complexity
from continuo.realtime.server.incoming_budget import release_share
from continuo.realtime.transport import run_paced


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request. Raises Refusal if it is over `limit` bytes, incomplete, or too
    complex to decode."""
    try:
        body = await _read_whole(request, limit)
        await run_paced(check_body_complexity(body, "body"))
    finally:
        release_share(request.scope)  # no longer charged: the caller decodes the body at once
    return body


async def _read_whole(request: Request, limit: int) -> bytes:
    """Read the whole body. Raises Refusal if it is incomplete or over `limit` bytes; if
    Content-Length is over the limit, before reading."""
    chunks: list[bytes] = []
    size = 0
    try:
        _check_size(_content_length(request), limit)
        async for chunk in request.stream():
            chunks.append(chunk)
            size += len(chunk)
            _check_size(size, limit)
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

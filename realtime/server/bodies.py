"""What a client sends over HTTP."""

from starlette.requests import ClientDisconnect, Request

from realtime.errors import Refusal
from realtime.protocol.weighing import weigh
from realtime.transport import paced


async def read_body(request: Request, limit: int) -> bytes:
    """At most `limit` bytes of what is not too much to read. Raises Refusal."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise Refusal(f"The body is over {limit:,} bytes.", code="body_too_large")
    except ClientDisconnect:
        raise Refusal("The body is not whole.", code="invalid_json") from None
    read = bytes(body)
    await paced(weigh(read, "body"))
    return read

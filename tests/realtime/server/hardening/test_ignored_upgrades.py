"""Requests that ask for another protocol than WebSocket are served in HTTP/1.1.

Java's HttpClient sends its requests over `http:` so, unless its version is set to HTTP/1.1.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.hardening.guards import SLICE_BYTES
from continuo.realtime.server.process.web_server import WebServer, bind

pytestmark = pytest.mark.server

HEAD = (
    b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
)
POST = b"POST /echo HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\n\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /echo HTTP/1.1\r\n" + HEAD + b"\r\n"
LARGE = b"x" * 300_000
PAD = b"X-Pad: %s\r\n"


@contextlib.asynccontextmanager
async def echo_server() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve the body of each request, and whether it asks for an upgrade. Yields a connection."""

    async def echo(request: Request) -> Response:
        return Response(await request.body(), headers={"asks": request.headers.get("upgrade", "")})

    app = Starlette(routes=[Route("/echo", echo, methods=["GET", "POST"])])
    listening, sock = asyncio.Event(), bind("127.0.0.1", 0)
    server = WebServer(app, GatewaySettings(), listening.set)
    serving = asyncio.create_task(server.serve([sock]))
    await listening.wait()
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await asyncio.wait_for(serving, 20)


async def receive(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the status line and the body of the next response."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    status, *lines = head.split(b"\r\n")[:-2]
    headers = dict(line.lower().split(b": ", 1) for line in lines)
    assert headers[b"asks"] == b"", "the application sees the upgrade"
    return status, await reader.readexactly(int(headers[b"content-length"]))


@pytest.mark.parametrize(
    "padding", [0, 250, SLICE_BYTES - len(POST) - len(PAD % b""), 2 * SLICE_BYTES]
)
@pytest.mark.parametrize(
    ("sent", "bodies"),
    [
        (POST + b"ping", [b"ping"]),
        (CHUNKED + b"4\r\nping\r\n0\r\n\r\n", [b"ping"]),
        (POST.replace(b": 4", b": 300000") + LARGE, [LARGE]),
        (GET, [b""]),
        (GET + POST + b"ping" + GET, [b"", b"ping", b""]),
    ],
    ids=["body", "chunks", "large body", "no body", "pipelined"],
)
async def test_request_is_served_without_its_upgrade(
    sent: bytes, bodies: list[bytes], padding: int
) -> None:
    """Twice on one connection, which stays open. The paddings place the end of a slice in the body,
    in the head, and between them."""
    padded = sent.replace(b"\r\n\r\n", b"\r\n" + PAD % (b"a" * padding) + b"\r\n", 1)
    async with echo_server() as (reader, writer):
        for _ in range(2):
            writer.write(padded)
            for body in bodies:
                assert await receive(reader) == (b"HTTP/1.1 200 OK", body)


async def test_head_with_an_ignored_upgrade_is_bounded_like_others() -> None:
    async with echo_server() as (reader, writer):
        writer.write(b"POST /echo HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 80_000 + b"\r\n\r\n")
        status = await asyncio.wait_for(reader.readline(), 20)
        assert status.startswith(b"HTTP/1.1 431 ")

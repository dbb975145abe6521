"""Pipelined requests of an HTTP connection."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.sse import ClientDisconnected, run_until_disconnect
from continuo.realtime.server.process.web_server import WebServer, bind

pytestmark = pytest.mark.server


@pytest.mark.parametrize("queued", [0, 1, 3])
async def test_running_request_sees_the_disconnect_and_queued_ones_never_run(queued: int) -> None:
    started: list[str] = []
    running, disconnected, listening = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def get(request: Request) -> Response:
        started.append(request.url.path)
        running.set()
        try:
            await run_until_disconnect(request, asyncio.Event().wait())
        except ClientDisconnected:
            disconnected.set()
        return Response()

    app = Starlette(routes=[Route("/{number}", get)])
    sock = bind("127.0.0.1", 0)
    server = WebServer(app, GatewaySettings(), listening.set)
    serving = asyncio.create_task(server.serve([sock]))
    await listening.wait()
    _, writer = await asyncio.open_connection(*sock.getsockname())
    for number in range(1 + queued):
        writer.write(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
    await running.wait()
    writer.close()
    await asyncio.wait_for(disconnected.wait(), 10)
    server.should_exit = True
    await asyncio.wait_for(serving, 20)
    assert started == ["/0"]

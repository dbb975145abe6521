"""Gateway's web server on a real port, in the process of the tests."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

from starlette.applications import Starlette
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from continuo.engine import EngineClient
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.server.process.web_server import WebServer, bind
from continuo.realtime.store import Store
from tests.support.engines import EngineHarness
from tests.support.sessions import shared_store

API_KEY = "key-one"


class RunningServer:
    def __init__(self, port: int, server: WebServer) -> None:
        self.port = port
        self.server = server
        self.url = f"ws://127.0.0.1:{port}/v1/realtime"

    @property
    def registry(self) -> Registry:
        return cast("Starlette", self.server.config.app).state.registry

    async def get_json(self, path: str, **headers: str) -> tuple[int, dict[str, object]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(body)


@contextlib.asynccontextmanager
async def serve_harness(
    bench: EngineHarness, settings: GatewaySettings, store: Store | None = None
) -> AsyncIterator[RunningServer]:
    async with serve_engine(bench.engine, settings, store or await shared_store(bench)) as running:
        yield running


@contextlib.asynccontextmanager
async def serve_engine(
    engine: EngineClient, settings: GatewaySettings, store: Store, port: int = 0
) -> AsyncIterator[RunningServer]:
    app = build_app(engine, settings, store)
    async with serve_app(app, app.state.registry, settings, port) as running:
        yield running


@contextlib.asynccontextmanager
async def serve_app(
    app: Starlette | ReadinessGate,
    registry: Registry,
    settings: GatewaySettings,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[RunningServer]:
    """Serve `app` on loopback: the application that uses `registry`, or its readiness gate."""
    sock = bind("127.0.0.1", port)
    ready = asyncio.Event()
    server = WebServer(app, settings, ready.set, tls)
    async with registry.running():
        serve_task = asyncio.create_task(server.serve([sock]))
        await ready.wait()
        yield RunningServer(sock.getsockname()[1], server)
        server.should_exit = True
        await asyncio.wait_for(serve_task, 20)


AUTHORIZATION_HEADERS = {"Authorization": f"Bearer {API_KEY}"}


async def wait_close_code(socket: ClientConnection) -> int:
    """Receive until the connection closes. Returns the server's close code, 1006 if the server sent
    no close frame."""
    try:
        while True:
            await receive_event(socket)
    except ConnectionClosed as end:
        return end.rcvd.code if end.rcvd else 1006


async def receive_event(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(await asyncio.wait_for(socket.recv(), 20))


async def receive_until(socket: ClientConnection, *types: str) -> dict[str, Any]:
    """Receive up to the first event whose type is one of `types`. Returns that event.

    Asserts that no other event is an error.
    """
    while (event := await receive_event(socket))["type"] not in types:
        assert event["type"] != "error", event
    return event

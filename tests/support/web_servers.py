"""Gateway's web server on a real port, in the process of the tests."""

import asyncio
import contextlib
import gc
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

from starlette.applications import Starlette

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
TENANTS = {API_KEY: "acme", "key-two": "umbrella"}
ACME, UMBRELLA = ({"Authorization": f"Bearer {key}"} for key in TENANTS)
"""Headers with the API key of each tenant."""


class RunningServer:
    def __init__(self, port: int, web_server: WebServer) -> None:
        self.port = port
        self.web_server = web_server
        self.url = f"ws://127.0.0.1:{port}/v1/realtime"

    @property
    def app(self) -> Starlette:
        return cast("Starlette", self.web_server.app)

    @property
    def registry(self) -> Registry:
        return self.app.state.registry

    async def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] = ACME
    ) -> tuple[int, Any]:
        """Send a request over HTTP without a client library. Returns status and JSON body."""
        status, _, received = await self.exchange(method, path, body, headers)
        return status, received

    async def exchange(
        self, method: str, path: str, body: object = None, headers: dict[str, str] = ACME
    ) -> tuple[int, dict[str, str], Any]:
        """Send a request like `request`. Returns status, headers in lower case and JSON body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(encode_request(method, path, body, headers))
        head, _, received = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status, *lines = head.decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines)
        return int(status.split()[1]), fields, json.loads(received)


def encode_request(
    method: str, path: str, body: object = None, headers: dict[str, str] = ACME
) -> bytes:
    """Encode an HTTP request whose body is `body` as it is if it is bytes, else as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data


async def exchange_raw(server: RunningServer, request: bytes) -> bytes:
    """Send bytes on a connection of their own. Returns all that the server sends until it closes
    the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    received = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return received


@contextlib.asynccontextmanager
async def serve_harness(
    harness: EngineHarness, settings: GatewaySettings, store: Store | None = None
) -> AsyncIterator[RunningServer]:
    async with serve_engine(
        harness.engine, settings, store or await shared_store(harness)
    ) as server:
        yield server


@contextlib.asynccontextmanager
async def serve_engine(
    engine: EngineClient, settings: GatewaySettings, store: Store, port: int = 0
) -> AsyncIterator[RunningServer]:
    app = build_app(engine, settings, store)
    async with serve_app(app, app.state.registry, settings, port) as server:
        yield server


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
    web_server = WebServer(app, settings, ready.set, tls)
    gc.freeze()  # The server begins with a full collection: it need not visit all tests.
    async with registry.running():
        serve_task = asyncio.create_task(web_server.serve([sock]))
        await ready.wait()
        yield RunningServer(sock.getsockname()[1], web_server)
        web_server.should_exit = True
        await asyncio.wait_for(serve_task, 20)

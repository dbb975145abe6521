"""Failures as both SDKs receive them: one test per row of conformance.md.

Each kind of server runs alone, with a real engine on a null device; the flows are in
`flows/failing.py` and `node/failing.mjs`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from continuo.engine import EngineClient
from continuo.engine.batch import Batch, BatchResult, Geometry
from continuo.realtime.limits import Limits
from continuo.realtime.server import replies
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.store import Store, StoredResponse
from tests.clients import node_types, transcripts
from tests.clients.conftest import KEY, NODE, ROOT, SDK, FlowResult
from tests.clients.cutting import CuttingProxy
from tests.clients.error_rows import ERRORS, errors_of
from tests.clients.rows import CLIENTS
from tests.realtime.conftest import chat_folder
from tests.support.digest_runner import VOCABULARY, DigestRunner
from tests.support.engines import EngineHarness, running_engine
from tests.support.sessions import shared_store
from tests.support.web_servers import serve_app


class FailingRunner(DigestRunner):
    """A null device on which a step with the same `poison` id twice in succession fails."""

    def launch(self, batch: Batch) -> BatchResult:
        for row in batch.rows:
            pairs = zip(row.ids, row.ids[1:], strict=False)
            if any(first == second and first in self.nan_ids for first, second in pairs):
                raise RuntimeError("the device is on fire")
        return super().launch(batch)


class SelfOpeningGate(ReadinessGate):
    """A readiness gate that opens after a number of refusals."""

    def __init__(self, app: Starlette, engine: EngineClient, store: Store, refusals: int) -> None:
        super().__init__(AccessPolicy(), wait_s_max=0.01)
        self._app_when_ready = app
        self._engine = engine
        self._store_when_ready = store
        self._refusals_left = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        self._refusals_left -= 1
        if self._refusals_left == 0:
            recovery = self._app_when_ready.state.registry.recovery
            self.set_app(self._app_when_ready, self._engine.fleet, self._store_when_ready, recovery)


class WithoutWebSockets:
    """Middleware that refuses WebSockets, like a proxy that does not carry them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            refusal = replies.error_response(426, "use_http", "WebSockets do not get through here.")
            await WebSocket(scope, receive, send).send_denial_response(refusal)
        else:
            await self._app(scope, receive, send)


class OnlyFirstConnectionExpires:
    """Middleware that restores the usual limits after the first connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connections += scope["type"] == "websocket"
        if self._connections > 1:
            scope["app"].state.responses.limits = Limits()
        await self._app(scope, receive, send)


class BuggyStore:
    """A bug in the store: looking up one response id raises."""

    def __init__(self, store: Store) -> None:
        self._find_response = store.find_response
        store.find_response = self.find_response

    async def find_response(self, response_id: str) -> StoredResponse | None:
        if response_id == "resp_bug":
            raise ZeroDivisionError
        return await self._find_response(response_id)


class ServerFleet:
    """Servers, each with an engine of its own, that run until the `stack` closes."""

    def __init__(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.servers: list[str] = []

    async def build(self, limits: Limits | None = None) -> tuple[Starlette, EngineHarness, Store]:
        geometry = Geometry(256, 4, 400, VOCABULARY, 64, 0, 0)
        engine = running_engine(self._folder, lambda: FailingRunner(geometry, step_s=0.002))
        bench = await self._stack.enter_async_context(engine)
        store = await shared_store(bench)
        return build_app(bench.engine, self._settings(limits or Limits()), store), bench, store

    async def open(
        self,
        name: str,
        app: Starlette,
        gate: ReadinessGate | None = None,
        cuts: list[int] | None = None,
    ) -> None:
        serving = serve_app(gate or app, app.state.registry, self._settings(Limits()))
        port = (await self._stack.enter_async_context(serving)).port
        if cuts is not None:
            port = await self._stack.enter_async_context(CuttingProxy(port, cuts).open())
        self.servers.append(f"{name}=http://127.0.0.1:{port}/v1")

    def _settings(self, limits: Limits) -> GatewaySettings:
        return GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",), limits=limits)


@contextlib.asynccontextmanager
async def running_servers(folder: Path) -> AsyncIterator[list[str]]:
    """Run every kind of server. Yields their names and addresses."""
    async with contextlib.AsyncExitStack() as stack:
        fleet = ServerFleet(stack, folder)
        app, _, _ = await fleet.build()
        await fleet.open("plain", app)
        app, bench, store = await fleet.build(
            Limits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000)
        )
        bench.runner.nan_ids = {bench.engine.text.encode("@")[0]}
        BuggyStore(store)
        await fleet.open("broken", app)
        app, _, _ = await fleet.build(Limits(tokens_per_minute=1))
        await fleet.open("limited", app)
        app, _, _ = await fleet.build(Limits(connection_lifetime_s=0.2))
        app.add_middleware(OnlyFirstConnectionExpires)
        await fleet.open("brief", app)
        app, _, _ = await fleet.build()
        app.add_middleware(WithoutWebSockets)
        await fleet.open("without_websockets", app)
        app, bench, store = await fleet.build()
        await fleet.open("starting", app, SelfOpeningGate(app, bench.engine, store, 3))
        app, _, _ = await fleet.build()
        await fleet.open("cut", app, cuts=[6000])
        yield fleet.servers


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CLIENTS)
async def results_of_client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, FlowResult]]:
    """Run the flows of one client. Returns the client and the results of its flows."""
    command = {
        "python": lambda: [SDK, "-m", "tests.clients.flows"],
        "node": lambda: [*request.getfixturevalue("node"), NODE / "flows.mjs"],
    }[request.param]()
    async with running_servers(chat_folder(tmp_path_factory.mktemp("chatty"))) as servers:
        client = await asyncio.create_subprocess_exec(
            *command, KEY, *servers, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await client.communicate()
    assert client.returncode == 0
    return request.param, json.loads(output)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", ERRORS)
def test_failure_matches_the_recorded_transcript(
    row: str, results_of_client: tuple[str, dict[str, FlowResult]], record: bool
) -> None:
    client, results = results_of_client
    name = errors_of(client).get(row)
    if name is None:
        pytest.skip("openai-node connects to Realtime only over TLS; see error_rows")
    assert results[name]["problem"] is None, results[name]["problem"]
    transcripts.check(client, name, results[name]["transcript"], record=record)


@pytest.mark.timeout(300)
def test_every_frame_matches_the_types_of_the_sdk(
    results_of_client: tuple[str, dict[str, FlowResult]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    client, results = results_of_client
    if client == "python":
        pytest.skip("the flows of openai-python validate each frame themselves")
    assert node_types.check(request.getfixturevalue("node"), results, tmp_path) > 100


@pytest.mark.timeout(300)
def test_every_flow_is_run(results_of_client: tuple[str, dict[str, FlowResult]]) -> None:
    client, results = results_of_client
    assert sorted(results) == sorted(errors_of(client).values())

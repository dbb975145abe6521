"""What goes wrong, each row of it met by both SDKs: one test a row.

Every kind of server is one on its own, with a real engine on a device of digests; the flows are in
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
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.store import Store, StoredResponse
from tests.clients import node_types, transcripts
from tests.clients.conftest import KEY, NODE, ROOT, SDK, Told
from tests.clients.cutting import Wire
from tests.clients.error_rows import ERRORS, errors_of
from tests.clients.rows import CLIENTS
from tests.realtime.conftest import chat_folder
from tests.support.digest_runner import VOCABULARY, DigestRunner
from tests.support.engines import Bench, engine_on
from tests.support.sessions import store_of
from tests.support.web_servers import listening


class Fragile(DigestRunner):
    """A step that reads the same id twice, one behind the other, fails, if the id is `poison`."""

    def launch(self, batch: Batch) -> BatchResult:
        for row in batch.rows:
            pairs = zip(row.ids, row.ids[1:], strict=False)
            if any(first == second and first in self.poison for first, second in pairs):
                raise RuntimeError("the device is on fire")
        return super().launch(batch)


class Opening(ReadinessGate):
    """Opens itself when it has sent away so many."""

    def __init__(
        self, behind: Starlette, engine: EngineClient, store: Store, sent_away: int
    ) -> None:
        super().__init__(wait_s_max=0.01)
        self._behind = behind
        self._engine = engine
        self._kept = store
        self._left = sent_away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        self._left -= 1
        if self._left == 0:
            self.set_app(self._behind, self._engine, self._kept)


class WithoutWebSockets:
    """A way there that does not carry them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            refusal = replies.error_response(426, "use_http", "WebSockets do not get through here.")
            await WebSocket(scope, receive, send).send_denial_response(refusal)
        else:
            await self._app(scope, receive, send)


class OnlyTheFirstIsBrief:
    """Connections after the first may last as long as usual."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connections += scope["type"] == "websocket"
        if self._connections > 1:
            scope["app"].state.responses.limits = Limits()
        await self._app(scope, receive, send)


class BuggyStore:
    """A store that has a bug where it is asked for one response."""

    def __init__(self, store: Store) -> None:
        self._find_response = store.find_response
        store.find_response = self.find_response

    async def find_response(self, response_id: str) -> StoredResponse | None:
        if response_id == "resp_bug":
            raise ZeroDivisionError
        return await self._find_response(response_id)


class Street:
    """The servers, each with an engine of its own, to the end of the `stack`."""

    def __init__(self, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.servers: list[str] = []

    async def build(self, limits: Limits | None = None) -> tuple[Starlette, Bench, Store]:
        geometry = Geometry(256, 4, 400, VOCABULARY, 64, 0, 0)
        engine = engine_on(self._folder, lambda: Fragile(geometry, step_s=0.002))
        bench = await self._stack.enter_async_context(engine)
        store = await store_of(bench)
        return build_app(bench.engine, self._settings(limits or Limits()), store), bench, store

    async def open(
        self,
        name: str,
        app: Starlette,
        front: ReadinessGate | None = None,
        cuts: list[int] | None = None,
    ) -> None:
        serving = listening(front or app, app.state.registry, self._settings(Limits()))
        port = (await self._stack.enter_async_context(serving)).port
        if cuts is not None:
            port = await self._stack.enter_async_context(Wire(port, cuts).open())
        self.servers.append(f"{name}=http://127.0.0.1:{port}/v1")

    def _settings(self, limits: Limits) -> GatewaySettings:
        return GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",), limits=limits)


@contextlib.asynccontextmanager
async def street(folder: Path) -> AsyncIterator[list[str]]:
    """Their names and where they are."""
    async with contextlib.AsyncExitStack() as stack:
        street = Street(stack, folder)
        app, _, _ = await street.build()
        await street.open("plain", app)
        app, bench, store = await street.build(
            Limits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000)
        )
        bench.runner.poison = {bench.engine.text.encode("@")[0]}
        BuggyStore(store)
        await street.open("broken", app)
        app, _, _ = await street.build(Limits(tokens_per_minute=1))
        await street.open("limited", app)
        app, _, _ = await street.build(Limits(connection_lifetime_s=0.2))
        app.add_middleware(OnlyTheFirstIsBrief)
        await street.open("brief", app)
        app, _, _ = await street.build()
        app.add_middleware(WithoutWebSockets)
        await street.open("without_websockets", app)
        app, bench, store = await street.build()
        await street.open("starting", app, Opening(app, bench.engine, store, 3))
        app, _, _ = await street.build()
        await street.open("cut", app, cuts=[6000])
        yield street.servers


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CLIENTS)
async def heard(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Told]]:
    """Which client, and what it says of each flow."""
    command = {
        "python": lambda: [SDK, "-m", "tests.clients.flows"],
        "node": lambda: [*request.getfixturevalue("node"), NODE / "flows.mjs"],
    }[request.param]()
    async with street(chat_folder(tmp_path_factory.mktemp("chatty"))) as servers:
        client = await asyncio.create_subprocess_exec(
            *command, KEY, *servers, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await client.communicate()
    assert client.returncode == 0
    return request.param, json.loads(told)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", ERRORS)
def test_row(row: str, heard: tuple[str, dict[str, Told]], record: bool) -> None:
    client, told = heard
    name = errors_of(client).get(row)
    if name is None:
        pytest.skip("not over plain HTTP; see error_rows")
    assert told[name]["problem"] is None, told[name]["problem"]
    transcripts.check(client, name, told[name]["transcript"], record=record)


@pytest.mark.timeout(300)
def test_every_frame_is_of_the_sdks_own_types(
    heard: tuple[str, dict[str, Told]], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client, told = heard
    if client == "python":
        pytest.skip("its flows do that themselves")
    assert node_types.check(request.getfixturevalue("node"), told, tmp_path) > 100


@pytest.mark.timeout(300)
def test_no_flow_is_forgotten(heard: tuple[str, dict[str, Told]]) -> None:
    client, told = heard
    assert sorted(told) == sorted(errors_of(client).values())

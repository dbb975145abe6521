"""A gateway and an engine on virtual time, above a real store, byte for byte deterministic.

    client ── ASGI ── the application ── virtual network ── engine (null device)
                           │
                      a real store, SQLite or Redis, on a thread of its own

Ids, tokens and seeds are drawn from one seed, and virtual time does not advance during a call of
the store, so that each run writes the same. The clock of the store is the real one.
"""

import asyncio
import gc
import inspect
import json
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import uvloop

from continuo.engine import EngineClient
from continuo.engine.text import ModelText
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.store import Store, open_store
from tests.simulation.hosts import HostSettings, SimulatedEngine
from tests.simulation.network import Network, NetworkLoop
from tests.simulation.virtual import SimulatedProcess, discard_tasks, virtual_time
from tests.support.grammar_trials import TrialsHere

Event = dict[str, Any]
T = TypeVar("T")
MODEL = str(Path(__file__).parent / "data" / "model")
KEY = "key-one"
SETTINGS = GatewaySettings(tenants={KEY: "acme"}, served_model_name=("demo",), web=False)


class _BlockingStore:
    """A store on an event loop of its own, in real time. Each call blocks virtual time."""

    def __init__(self, url: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._store: Store = self._run(open_store(url))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            return self._run(method(*args, **options))

        return call

    def shut_down(self) -> None:
        self._run(self._store.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class Socket:
    """The client's end of a WebSocket."""

    def __init__(self, server: "VirtualServer", path: str, query: str, key: str) -> None:
        self.events: list[Event] = []
        self.closed: int | None = None
        self._to_server: asyncio.Queue[Event] = asyncio.Queue()
        self._to_server.put_nowait({"type": "websocket.connect"})
        self._changed = asyncio.Event()
        scope = server.scope("websocket", path, query, key)
        server.gateway.run(server.app(scope, self._to_server.get, self._receive))

    async def _receive(self, message: Event) -> None:
        match message["type"]:
            case "websocket.send":
                self.events.append(json.loads(message["text"]))
            case "websocket.close":
                self.closed = message["code"]
            case _:
                pass
        self._changed.set()

    def send(self, type: str, **fields: Any) -> None:
        frame = json.dumps({"type": type, **fields})
        self._to_server.put_nowait({"type": "websocket.receive", "text": frame})

    async def wait_for(self, kind: str, count: int = 1) -> Event:
        """Wait for the `count`th event of a type."""
        async with asyncio.timeout(60):
            while True:
                matching = [event for event in self.events if event["type"] == kind]
                if len(matching) >= count:
                    return matching[count - 1]
                self._changed.clear()
                await self._changed.wait()

    async def disconnect(self) -> None:
        self._to_server.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await asyncio.sleep(1.0)


class VirtualServer:
    """A gateway and an engine, within `run_on_virtual_time`."""

    app: Any

    def __init__(self, loop: NetworkLoop, store: Any) -> None:
        self.loop = loop
        self.engine = SimulatedEngine(
            HostSettings(
                loop,
                MODEL,
                ModelText(MODEL),
                step_s=0.01,
                steps_ahead=0,
                pages=2000,
                max_model_len=4000,
            ),
            "engine",
            1,
        )
        self.gateway = SimulatedProcess(loop, "gateway")
        self._store = store
        self._ready = loop.create_future()

    async def start(self) -> None:
        self.gateway.run(self._serve(), "gateway")
        await self._ready

    async def _serve(self) -> None:
        engine = EngineClient(grammar_trials=TrialsHere())
        engine.fleet.add("engine", 1)
        await engine.wait_until_ready()
        self.app = build_app(engine, SETTINGS, self._store)
        async with self.app.state.registry.running():
            self._ready.set_result(None)
            await asyncio.Event().wait()

    def kill(self) -> None:
        """Kill gateway and engine at the same instant."""
        self.gateway.kill()
        self.engine.process.kill()

    def scope(self, type: str, path: str, query: str, key: str, **more: Any) -> Event:
        return {
            "type": type,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "ws" if type == "websocket" else "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"x"), (b"authorization", f"Bearer {key}".encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "subprotocols": [],
            "extensions": {},
            **more,
        }

    def connect(self, path: str, query: str = "", key: str = KEY) -> Socket:
        return Socket(self, path, query, key)

    def resume(self, session: str, after: str, key: str = KEY) -> Socket:
        query = f"model=demo&session_id={session}&last_event_id={after}"
        return self.connect("/v1/realtime", query, key)

    async def request(self, method: str, path: str, body: object = None, query: str = "") -> str:
        """Send an HTTP request. Returns status and body."""
        request_events: asyncio.Queue[Event] = asyncio.Queue()
        content = b"" if body is None else json.dumps(body).encode()
        request_events.put_nowait({"type": "http.request", "body": content, "more_body": False})
        status, data = 0, b""

        async def receive(message: Event) -> None:
            nonlocal status, data
            status = message.get("status", status)
            data += message.get("body", b"")

        scope = self.scope("http", path, query, KEY, method=method)
        await self.gateway.run(self.app(scope, request_events.get, receive))
        return f"{status} {data.decode()}"


def run_on_virtual_time(
    url: str, seed: int, scenario: Callable[["VirtualServer"], Awaitable[T]]
) -> T:
    """Run `scenario` on virtual time, above the store at `url`. Returns its result.

    The processes are killed when it returns, and then the store is closed.
    """
    loop = NetworkLoop()
    loop.network = Network(loop, Random(f"network {seed}"))
    with warnings.catch_warnings(), virtual_time(loop, seed), _without_thread_pools():
        warnings.filterwarnings("ignore", "coroutine '.*' was never awaited")  # after the kill
        store = _BlockingStore(url)
        try:
            return loop.run_until_complete(_start_and_run(VirtualServer(loop, store), scenario))
        finally:
            discard_tasks([task for task in asyncio.all_tasks(loop) if not task.done()])
            store.shut_down()
            gc.collect()  # while warnings about killed coroutines are suppressed


async def _start_and_run(
    server: "VirtualServer", scenario: Callable[["VirtualServer"], Awaitable[T]]
) -> T:
    await server.start()
    try:
        return await scenario(server)
    finally:
        server.kill()


@contextmanager
def _without_thread_pools() -> Iterator[None]:
    """Run work for a thread pool (compiling a grammar) synchronously.

    Nothing on virtual time may depend on how long the work takes.
    """
    submit = ThreadPoolExecutor.submit

    def run_now(self: ThreadPoolExecutor, work: Any, /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **options))
        except Exception as error:
            done.set_exception(error)
        return done

    ThreadPoolExecutor.submit = run_now
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit

"""Simulated engines and gateways: the product's own parts, assembled as by its command line, on the
null device."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from continuo.engine import EngineClient
from continuo.engine.batch import Geometry
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.loop import EngineLoop, InFlightStep
from continuo.engine.core.paged_backend import PagedBackend
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sessions import Sessions
from continuo.engine.server.clients import Clients
from continuo.engine.server.listener import Listener
from continuo.engine.text import ModelText
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import Credentials, ForkRequest, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.process.web_server import PING_S
from continuo.realtime.transport import Connection, SocketClosed
from continuo.realtime.transport.socket import Account, Unmetered
from tests.simulation.network import Endpoint
from tests.simulation.storage import SimulatedStoreClient
from tests.simulation.virtual import SimulatedProcess, VirtualLoop
from tests.support.digest_runner import DigestRunner, make_engine_ready
from tests.support.grammar_trials import TrialsHere

LIMITS = Limits(
    resume_window_s=90.0,
    detach_grace_s=2.0,
    command_timeout_s=8.0,
    close_timeout_s=2.0,
    connection_lifetime_s=900.0,
)
ENGINE_CONFIG = EngineConfig(detach_grace_s=3.0, detach_keep_s=20.0)


class HostSettings(NamedTuple):
    """Settings of the simulated processes."""

    loop: VirtualLoop
    folder: str
    text: ModelText
    step_s: float
    steps_ahead: int
    pages: int
    max_model_len: int = 600


class _InlineExecutor:
    """Executor that runs the device's work at once instead of on a thread."""

    def submit(self, work: Any, *args: Any) -> Any:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **options: Any) -> None:
        pass


class TimedEngineLoop(EngineLoop[Any]):
    """Engine loop whose steps take `step_s` of virtual time, during which commands arrive."""

    step_s = 0.0

    async def _await_result(self, step: InFlightStep) -> Any:
        await asyncio.sleep(self.step_s)
        return await super()._await_result(step)


class SimulatedEngine:
    def __init__(self, host: HostSettings, name: str, start_number: int) -> None:
        self.name = name
        self.process = SimulatedProcess(host.loop, name)
        geometry = Geometry(host.pages, 4, host.max_model_len, 97, 64, host.steps_ahead, 0)
        self.runner, counters = DigestRunner(geometry), Counters()
        self.cache = SessionAwareCache.for_geometry(geometry, blanks_pages=True)
        scheduler = Scheduler(self.cache, geometry.batched_tokens, 4)
        self._loop = TimedEngineLoop(
            self.runner, self.cache, scheduler, counters, audit_every_step=True
        )
        self._loop.step_s = host.step_s
        self._loop._device_executor = _InlineExecutor()  # type: ignore[assignment]  # a subset of Executor

        def clock() -> float:
            return host.loop.now + 1000.0

        self.sessions = Sessions(
            PagedBackend(self.cache, scheduler, counters, geometry.state_bytes),
            geometry.max_model_len,
            geometry.vocab_size,
            make_stop_watch=host.text.create_stop_matcher,
            grammars=host.text.create_grammar_compiler(geometry.vocab_size, self._loop.wake),
            emit=self._loop.emit,
            clock=clock,
        )
        self.clients = Clients(
            self._loop.enqueue, self.sessions.measure_load, ENGINE_CONFIG, clock, host.folder
        )
        self._ready = make_engine_ready(geometry, host.folder, f"{name}-{start_number}")
        self.run_task = self.process.run(self._run(), name)

    async def _run(self) -> None:
        Listener(ListenerConfig(fd=socket.socket().detach()), self.clients, self._ready)
        await self._loop.run(self.sessions, self.clients.send_all)

    def check_empty(self) -> None:
        """Assert that no session and no leased page remains."""
        self.cache.audit()
        pool, tree = self.cache.pool, self.cache.tree
        load = self.sessions.measure_load()
        assert load.sessions == 0, f"{self.name} has {load.sessions} sessions left"
        assert pool.free_count + tree.size == pool.total, "pages have leaked"


class SimulatedGateway:
    def __init__(
        self,
        host: HostSettings,
        name: str,
        start_number: int,
        store: SimulatedStoreClient,
        engines: list[str],
    ) -> None:
        self.name = name
        self.process = SimulatedProcess(host.loop, name)
        self.registry: Registry | None = None
        """Registry of the gateway; None until it is ready, and after it has stopped."""
        self.stop_requested = asyncio.Event()
        self._store = store
        self._engines = engines
        self.run_task = self.process.run(self._run(), name)

    async def _run(self) -> None:
        engine = EngineClient(grammar_trials=TrialsHere())
        for name in self._engines:
            engine.fleet.add(name, 1)
        await engine.wait_until_ready()
        template = engine.text.template
        assert template is not None
        registry = Registry(engine, template, GenerationSettings(), LIMITS, self._store, b"s" * 32)
        engine.subscribe(registry.on_superseded)
        async with registry.running():
            self.registry = registry
            await self.stop_requested.wait()
            self.registry = None
        await engine.stop()

    def accept(self, endpoint: Endpoint, request: ForkRequest | ResumeRequest | None) -> None:
        """Serve a new connection of a client. Called in the context of the process."""
        if self.registry is None:
            endpoint.close((CloseCode.TRY_AGAIN_LATER, "not ready"))
            return
        client_socket = SimulatedSocket(endpoint)
        connection = Connection(
            client_socket, self.registry, LIMITS, "demo", Credentials(), request
        )
        self.process.run(connection.run(), "connection")


class SimulatedSocket:
    """The gateway's socket of a connection, which pings the client like the real server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.account: Account = Unmetered()
        self._end = endpoint
        self._frames: asyncio.Queue[str | None] = asyncio.Queue()
        self._pong: asyncio.Future[bool] | None = None
        endpoint.on_data = self._frames.put_nowait
        endpoint.on_lost = lambda close: self._on_lost()
        self._keep_alive()

    def _keep_alive(self, unanswered: bool = False) -> None:
        """Close the connection if the ping before was lost, because the link is cut."""
        if unanswered:
            self._end.mark_closed()
        if self._end.is_open:
            loop = asyncio.get_running_loop()
            loop.call_later(PING_S, self._keep_alive, self._end.link.is_cut)

    async def recv(self) -> str | bytes:
        frame = await self._frames.get()
        if frame is None:
            raise SocketClosed
        return frame

    async def send(self, frame: str) -> None:
        if not self._end.is_open:
            raise SocketClosed
        self._end.send(frame)

    def send_now(self, frames: Sequence[bytes]) -> bool:
        for frame in frames:
            self._end.send(frame.decode())
        return self._end.is_open

    async def ping(self, timeout_s: float) -> bool:
        self._pong = asyncio.get_running_loop().create_future()
        if not self._end.is_open:
            return False
        self._end.ping(lambda: self._set_pong(True))
        try:
            async with asyncio.timeout(timeout_s):
                return await self._pong
        except TimeoutError:
            return False

    def _on_lost(self) -> None:
        self._frames.put_nowait(None)
        self._set_pong(False)

    def _set_pong(self, is_answered: bool) -> None:
        if self._pong is not None and not self._pong.done():
            self._pong.set_result(is_answered)

    async def close(self, code: CloseCode, reason: str) -> None:
        self._end.close((code, reason))

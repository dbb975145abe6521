"""ServerHarness: an engine client and an engine core on another server, connected by real sockets;
UpstreamHarness: the same on a fake server."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from continuo.engine.batch import Geometry
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.local_checkpoint import find_local_checkpoint
from continuo.engine.server.upstream_assembly import UpstreamCore, assemble_upstream
from continuo.engine.text import ModelText
from continuo.engine.upstream.detection import detect_server
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.model_check import ModelCheck
from continuo.engine.upstream.server import UpstreamServer
from tests.support.digest_runner import VOCABULARY, DigestRunner, make_engine_ready
from tests.support.engines import EngineHarness, RunningCore
from tests.support.grammar_trials import TrialsHere
from tests.support.ports import free_port
from tests.support.upstream_servers import FakeLlama, FakeServer, FakeVllm, serve_fake


class ServerHarness(EngineHarness):
    """Engine whose ids another server draws. It has neither runner nor cache nor scheduler."""

    core: UpstreamCore
    server: UpstreamServer

    def __init__(self, folder: Path, url: str, vocab_size: int = VOCABULARY) -> None:
        super().__init__(folder, _make_no_runner, rows=1)
        self._url = url
        self._vocab_size = vocab_size

    async def assemble(self) -> RunningCore:
        self.server = await detect_server(HttpClient(self._url), self._text)
        model = await self.server.describe()
        check = ModelCheck(self._url, self._text)
        await check.compare(self.server, model)
        geometry = Geometry(1, 1, model.max_model_len, self._vocab_size, 1, 0)
        ready = make_engine_ready(geometry, self._folder, self._incarnation)
        self.ready = msgspec.structs.replace(ready, enforces_lark=self.server.enforces_lark)
        self.core = assemble_upstream(
            self.server, check, self._text, self.ready, self.config, self.record_turn
        )
        await self.core.watch.measure()
        return self.core


class UpstreamHarness(ServerHarness):
    """Engine on a fake server, which a test may stop and start again."""

    def __init__(self, folder: Path, fake: FakeServer) -> None:
        self._port = free_port()
        super().__init__(folder, f"http://127.0.0.1:{self._port}")
        self.fake = fake
        fake.make_ids = self._text.encode_untrusted
        if isinstance(fake, FakeLlama):
            fake.bytes_of = self._text.token_bytes.of
        self._serving = contextlib.AsyncExitStack()

    async def start_server(self) -> None:
        await self._serving.enter_async_context(serve_fake(self.fake, self._port))

    async def stop_server(self) -> None:
        """Stop the server like a crash: its connections are cut."""
        await self._serving.aclose()


def _make_no_runner() -> DigestRunner:
    raise NotImplementedError


@contextlib.asynccontextmanager
async def engine_on(url: str, folder: Path, vocab_size: int) -> AsyncIterator[ServerHarness]:
    """Run an engine on the server at `url`, and a client of the engine."""
    harness = ServerHarness(folder, url, vocab_size)
    harness.engine = EngineClient(harness.launch, grammar_trials=TrialsHere())
    await harness.engine.connect()
    try:
        yield harness
    finally:
        await harness.close()


@contextlib.asynccontextmanager
async def upstream_engine(folder: Path, fake: FakeServer) -> AsyncIterator[UpstreamHarness]:
    """Run a fake server, an engine on it, and a client of the engine."""
    harness = UpstreamHarness(folder, fake)
    await harness.start_server()
    harness.engine = EngineClient(harness.launch, grammar_trials=TrialsHere())
    await harness.engine.connect()
    try:
        yield harness
    finally:
        await harness.close()
        await harness.stop_server()


FAKES: dict[str, type[FakeVllm] | type[FakeLlama]] = {"vllm": FakeVllm, "llama": FakeLlama}
"""Fake of each kind of server, for parametrized tests."""


def demo_fake(fake: FakeServer) -> FakeServer:
    """Return the fake, with the tokenizer of the demo model."""
    text = ModelText(str(find_local_checkpoint("demo")))
    fake.make_ids, fake.vocab_size, fake.end_ids = text.encode_untrusted, 4096, frozenset()
    return fake

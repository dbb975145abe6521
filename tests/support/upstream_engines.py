"""UpstreamHarness: an engine client and an engine core on a fake server, connected by real
sockets."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from continuo.engine.batch import Geometry
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.local_checkpoint import find_local_checkpoint
from continuo.engine.server.upstream_assembly import UpstreamCore, assemble_upstream
from continuo.engine.text import ModelText
from continuo.engine.upstream.detection import detect_server
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.model_check import ModelCheck
from tests.support.digest_runner import VOCABULARY, DigestRunner, make_engine_ready
from tests.support.engines import EngineHarness, RunningCore
from tests.support.ports import free_port
from tests.support.upstream_servers import FakeLlama, FakeServer, FakeVllm, serve_fake


class UpstreamHarness(EngineHarness):
    """Engine whose ids a fake server draws, which a test may stop and start again. It has neither
    runner nor cache nor scheduler."""

    core: UpstreamCore

    def __init__(self, folder: Path, fake: FakeServer) -> None:
        super().__init__(folder, _make_no_runner, rows=1)
        self.fake = fake
        fake.make_ids = self._text.encode_untrusted
        self._port = free_port()
        self._serving = contextlib.AsyncExitStack()

    async def start_server(self) -> None:
        await self._serving.enter_async_context(serve_fake(self.fake, self._port))

    async def stop_server(self) -> None:
        """Stop the server like a crash: its connections are cut."""
        await self._serving.aclose()

    async def assemble(self) -> RunningCore:
        server = await detect_server(HttpClient(f"http://127.0.0.1:{self._port}"))
        model = await server.describe()
        check = ModelCheck(f"http://127.0.0.1:{self._port}", self._text)
        await check.compare(server, model)
        geometry = Geometry(1, 1, model.max_model_len, VOCABULARY, 1, 0)
        self.ready = make_engine_ready(geometry, self._folder, self._incarnation)
        self.core = assemble_upstream(
            server, check, self._text, self.ready, self.config, self.record_turn
        )
        await self.core.watch.measure()
        return self.core


def _make_no_runner() -> DigestRunner:
    raise NotImplementedError


@contextlib.asynccontextmanager
async def upstream_engine(folder: Path, fake: FakeServer) -> AsyncIterator[UpstreamHarness]:
    """Run a fake server, an engine on it, and a client of the engine."""
    harness = UpstreamHarness(folder, fake)
    await harness.start_server()
    harness.engine = EngineClient(harness.launch)
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

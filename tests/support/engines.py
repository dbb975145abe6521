"""An Engine in front of a real Loop over a real socket, in one process, on a fake device."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import WordLevel

from continuo.engine.batch import Geometry, Runner
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.loop import EngineLoop
from continuo.engine.core.schedule import Scheduler
from continuo.engine.server.assembly import assemble
from continuo.engine.server.listener import listen
from continuo.engine.text import ModelText
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import EngineCommand, EngineEvent, EngineReady, refuse_malformed
from tests.support.digest_runner import VOCABULARY, DigestRunner, ready


def tiny_tokenizer() -> Tokenizer:
    """Id n reads as one letter: 0 is 'a', 26 is 'A', then digits."""
    letters = (
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&()*+,-./:;<=>?@[]^_"
    )
    names = [*letters, *(f"~{n}" for n in range(VOCABULARY))][:VOCABULARY]
    tokenizer = Tokenizer(WordLevel({name: n for n, name in enumerate(names)}, unk_token="a"))
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def tiny_text(folder: Path) -> Path:
    """A folder with that tokenizer; its answers end with 'a'."""
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    return folder


Make = Callable[[], Runner[Any]]


class Bench:
    """An engine whose loop runs in this process, and the parts of it a test may look at. `kill`
    ends it as a crash would; the front then launches another."""

    engine: EngineClient
    runner: Any
    cache: SessionAwareCache
    scheduler: Scheduler

    def __init__(
        self, folder: Path, make: Make, rows: int, scheduler: type[Scheduler] = Scheduler
    ) -> None:
        self._scheduling = scheduler
        self._folder = str(folder)
        self._make = make
        self._rows = rows
        self._text = ModelText(self._folder)
        self._loop: EngineLoop[Any] | None = None
        self._link: Link[EngineEvent, EngineCommand] | None = None
        self._running: asyncio.Task[None] | None = None
        self.launches = 0
        self.config = EngineConfig()
        self.may_launch = asyncio.Event()
        """Cleared, no engine comes back."""
        self.may_launch.set()
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._files: dict[str, str | None] = {}
        self.besides = contextlib.AsyncExitStack()
        """What lives as long as this: closed with it, after the engine."""

    async def launch(self) -> socket.socket:
        """A socket to a fresh loop on a fresh device."""
        await self._end()
        await self.may_launch.wait()
        self.launches += 1
        self.runner = self._make()
        config = msgspec.structs.replace(
            self.config, max_num_seqs=self._rows, audit_every_step=True
        )
        digest = self._ready(self.runner.geometry).digest
        parts = assemble(self.runner, self._text, config, self._scheduling, digest)
        self.cache, self.scheduler, loop = parts.cache, parts.scheduler, parts.loop
        fronts = self.fronts = parts.clients
        link: Link[EngineEvent, EngineCommand] = Link(
            msgspec.msgpack.Decoder(list[EngineCommand]),
            lambda commands: fronts.receive(front, commands),
            lambda: None,
            make_refusal=refuse_malformed,
        )
        front = fronts.add(link.send_now)
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().create_connection(lambda: link, sock=theirs)
        link.send(self._ready(self.runner.geometry))
        if self._listener is not None:
            await self._listen(self._listener)
        self._loop, self._link = loop, link
        self._running = asyncio.create_task(parts.run())
        self._running.add_done_callback(self._ended)
        return ours

    def _ended(self, running: "asyncio.Task[None]") -> None:
        """A loop that crashed answers nobody any more: those who wait for it need not."""
        if not running.cancelled() and running.exception() is not None:
            self._stopping = asyncio.create_task(self.engine.stop())

    def kill(self) -> None:
        """What it has not sent is lost, and so is its memory."""
        assert self._loop is not None
        assert self._link is not None
        self._loop.stop()
        self._link.abort()
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Every link to a front elsewhere."""
        for front in list(self.fronts.connected):
            if front.disconnect is not None:
                front.disconnect()

    async def listen(
        self,
        secret_file: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> int:
        """Fronts elsewhere may join it, and whatever is launched after it; gives the port."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        files = (str(file) if file else None for file in (secret_file, certificate, key))
        self._files = dict(zip(("secret_file", "ssl_certfile", "ssl_keyfile"), files, strict=True))
        await self._listen(self._listener)
        return self._listener.getsockname()[1]

    async def _listen(self, listener: socket.socket) -> None:
        if self._server is not None:
            self._server.close()
        listening = ListenerConfig(fd=listener.dup().detach(), **self._files)
        ready = self._ready(self.runner.geometry)
        self._server = await listen(listening, self.fronts, ready)

    async def close(self) -> None:
        assert self._running is not None
        crashed = self._running.done()
        await self.engine.stop()
        await self._end()
        if self._server is not None and self._listener is not None:
            self._server.close()
            self.cut()
            self._listener.close()
        await self.besides.aclose()
        assert not crashed, "the loop ended by itself"

    async def _end(self) -> None:
        if self._loop is not None and self._running is not None:
            self._loop.stop()
            await self._running

    def _ready(self, geometry: Geometry) -> EngineReady:
        return ready(geometry, self._folder, f"{id(self):x}-{self.launches}")


@contextlib.asynccontextmanager
async def engine_on(
    folder: Path, make: Make, *, rows: int = 8, scheduler: type[Scheduler] = Scheduler
) -> AsyncIterator[Bench]:
    """An engine on the runner that `make` makes, at each launch a new one."""
    bench = Bench(folder, make, rows, scheduler)
    bench.engine = EngineClient(bench.launch)
    await bench.engine.connect()
    try:
        yield bench
    finally:
        await bench.close()


def digest_engine(
    folder: Path,
    *,
    pages: int = 64,
    page_size: int = 4,
    max_model_len: int = 200,
    batched_tokens: int = 16,
    rows: int = 8,
    steps_ahead: int = 0,
    step_s: float = 0.0,
    host_pages: int = 0,
    scheduler: type[Scheduler] = Scheduler,
    vocabulary: int = VOCABULARY,
) -> contextlib.AbstractAsyncContextManager[Bench]:
    """`vocabulary`: ids it understands; it draws the first VOCABULARY of them."""
    limit = min(max_model_len, pages * page_size)
    geometry = Geometry(
        pages, page_size, limit, vocabulary, batched_tokens, steps_ahead, host_pages
    )
    return engine_on(
        folder, lambda: DigestRunner(geometry, step_s=step_s), rows=rows, scheduler=scheduler
    )

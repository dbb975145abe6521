"""EngineHarness: an engine client and a real engine core on a fake device, in one process and
connected by a real socket."""

import asyncio
import contextlib
import functools
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
from continuo.engine.core.speculation import Speculation
from continuo.engine.core.transitions import RecordTurn
from continuo.engine.server.assembly import EngineCore, assemble
from continuo.engine.server.listener import Listener
from continuo.engine.server.upstream_assembly import UpstreamCore
from continuo.engine.text import ModelText
from continuo.engine.upstream.loop import UpstreamLoop
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import EngineCommand, EngineEvent, EngineReady, refuse_malformed
from tests.support.digest_runner import VOCABULARY, DigestRunner, make_engine_ready
from tests.support.grammar_trials import TrialsHere
from tests.support.waiting import POLL_S


def tiny_tokenizer() -> Tokenizer:
    """Make a tokenizer with one character per id: 0 is 'a', 26 is 'A', then digits."""
    letters = (
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&()*+,-./:;<=>?@[]^_"
    )
    names = [*letters, *(f"~{n}" for n in range(VOCABULARY))][:VOCABULARY]
    tokenizer = Tokenizer(WordLevel({name: n for n, name in enumerate(names)}, unk_token="a"))
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def write_tiny_model(folder: Path) -> Path:
    """Write a checkpoint folder of `tiny_tokenizer`, with stop id 0 and no weights. Returns it."""
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    return folder


RunnerFactory = Callable[[], Runner[Any]]
RunningCore = EngineCore[Any] | UpstreamCore
SpeculationFactory = Callable[[], Speculation]


@functools.cache
def _load_text(folder: str) -> ModelText:
    """Load the text of an engine: it never changes, and its chat template takes long to probe."""
    return ModelText(folder)


class EngineHarness:
    """Engine whose loop runs in the test's process, so that a test can reach its parts.

    `kill` ends the engine like a crash; the engine client then calls `launch` for another.
    """

    engine: EngineClient
    runner: Any
    cache: SessionAwareCache
    scheduler: Scheduler
    ready: EngineReady

    def __init__(
        self,
        folder: Path,
        make: RunnerFactory,
        rows: int,
        scheduler: type[Scheduler] = Scheduler,
        speculation: SpeculationFactory | None = None,
        max_group_share: float = 1.0,
    ) -> None:
        self._scheduling = scheduler
        self._make_speculation = speculation
        self._folder = str(folder)
        self._make = make
        self._rows = rows
        self._text = _load_text(self._folder)
        self._loop: EngineLoop[Any] | UpstreamLoop | None = None
        self._link: Link[EngineEvent, EngineCommand] | None = None
        self._running: asyncio.Task[None] | None = None
        self.launch_count = 0
        self.config = EngineConfig(max_group_share=max_group_share)
        self.record_turn: RecordTurn | None = None
        """Recorder of the turns of engines that are launched later."""
        self.launch_allowed = asyncio.Event()
        """Event that `launch` waits for; set unless a test clears it."""
        self.launch_allowed.set()
        self._listener: socket.socket | None = None
        self._server: Listener | None = None
        self._files: dict[str, str | None] = {}
        self.exit_stack = contextlib.AsyncExitStack()
        """Resources that `close` releases after the engine has stopped."""

    async def launch(self) -> socket.socket:
        """Start a new engine core with a new runner. Returns the socket of the engine client."""
        await self._end()
        await self.launch_allowed.wait()
        self.launch_count += 1
        parts = await self.assemble()
        clients = self.clients = parts.clients
        link: Link[EngineEvent, EngineCommand] = Link(
            msgspec.msgpack.Decoder(list[EngineCommand]),
            lambda commands: clients.receive(client, commands),
            lambda: None,
            make_refusal=refuse_malformed,
        )
        client = clients.add(link.send_now)
        client_socket, engine_socket = socket.socketpair()
        await asyncio.get_running_loop().create_connection(lambda: link, sock=engine_socket)
        link.send(self.ready)
        if self._listener is not None:
            await self._listen(self._listener)
        self._loop, self._link = parts.loop, link
        self._running = asyncio.create_task(parts.run())
        self._running.add_done_callback(self._on_ended)
        return client_socket

    async def assemble(self) -> RunningCore:
        """Assemble the engine core of one launch, and make `ready`."""
        self.runner = self._make()
        config = msgspec.structs.replace(
            self.config, max_num_seqs=self._rows, audit_every_step=True
        )
        self.ready = make_engine_ready(self.runner.geometry, self._folder, self._incarnation)
        parts = assemble(
            self.runner,
            self._text,
            config,
            self._scheduling,
            self.ready.digest,
            record_turn=self.record_turn,
            speculation=self._make_speculation and self._make_speculation(),
        )
        self.cache, self.scheduler = parts.cache, parts.scheduler
        return parts

    @property
    def _incarnation(self) -> str:
        return f"{id(self):x}-{self.launch_count}"

    def _on_ended(self, running: "asyncio.Task[None]") -> None:
        """Stop the engine client if the engine's loop has crashed, so that no caller waits
        forever."""
        if not running.cancelled() and running.exception() is not None:
            self._stopping = asyncio.create_task(self.engine.stop())

    def kill(self) -> None:
        """Kill the engine: events not yet sent and all of its memory are lost."""
        assert self._loop is not None
        assert self._link is not None
        self._loop.stop()
        self._link.abort()
        if self._server is not None:
            self._server.close()
        self.disconnect_clients()

    def disconnect_clients(self) -> None:
        """Disconnect the clients that are connected over the network."""
        for client in list(self.clients.connected):
            if client.disconnect is not None:
                client.disconnect()

    async def listen(
        self,
        secret_file: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> int:
        """Listen on a TCP port for further clients. Engines launched later use the same port.

        Returns the port.
        """
        self._listener = socket.create_server(("127.0.0.1", 0))
        files = (str(file) if file else None for file in (secret_file, certificate, key))
        self._files = dict(zip(("secret_file", "ssl_certfile", "ssl_keyfile"), files, strict=True))
        await self._listen(self._listener)
        return self._listener.getsockname()[1]

    async def _listen(self, listener: socket.socket) -> None:
        if self._server is not None:
            self._server.close()
        listening = ListenerConfig(fd=listener.dup().detach(), **self._files)
        self._server = Listener(listening, self.clients, self.ready)

    async def wait_until_empty(self) -> None:
        """Wait until the engine has no session. Raises TimeoutError after 20 s."""
        async with asyncio.timeout(20):
            while await self.engine.fleet.list_sessions():
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        assert self._running is not None
        crashed = self._running.done()
        await self.engine.stop()
        await self._end()
        if self._server is not None and self._listener is not None:
            self._server.close()
            self.disconnect_clients()
            self._listener.close()
        await self.exit_stack.aclose()
        assert not crashed, "the loop has crashed"

    async def _end(self) -> None:
        if self._loop is not None and self._running is not None:
            self._loop.stop()
            await self._running


@contextlib.asynccontextmanager
async def running_engine(
    folder: Path,
    make: RunnerFactory,
    *,
    rows: int = 8,
    scheduler: type[Scheduler] = Scheduler,
    speculation: SpeculationFactory | None = None,
    max_group_share: float = 1.0,
) -> AsyncIterator[EngineHarness]:
    """Run an engine and its client; `make` creates the runner of each launch, `speculation` its
    drafts."""
    harness = EngineHarness(folder, make, rows, scheduler, speculation, max_group_share)
    harness.engine = EngineClient(harness.launch, grammar_trials=TrialsHere())
    await harness.engine.connect()
    try:
        yield harness
    finally:
        await harness.close()


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
    pauses: int = 0,
    host_pages: int = 0,
    scheduler: type[Scheduler] = Scheduler,
    vocabulary: int = VOCABULARY,
    speculation: SpeculationFactory | None = None,
    max_group_share: float = 1.0,
    **memory: Any,
) -> contextlib.AbstractAsyncContextManager[EngineHarness]:
    """Run an engine on the null device.

    `step_s`, `pauses`: as in DigestRunner. `vocabulary`: number of valid input ids; the null device
    draws only ids below VOCABULARY. `memory`: further fields of Geometry.
    """
    limit = min(max_model_len, pages * page_size)
    geometry = Geometry(
        pages, page_size, limit, vocabulary, batched_tokens, steps_ahead, host_pages, **memory
    )
    return running_engine(
        folder,
        lambda: DigestRunner(geometry, step_s=step_s, pauses=pauses),
        rows=rows,
        scheduler=scheduler,
        speculation=speculation,
        max_group_share=max_group_share,
    )

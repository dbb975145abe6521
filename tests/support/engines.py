"""An Engine in front of a real Loop over a real socket, in one process, on a fake device."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import WordLevel

from engine.batch import Geometry
from engine.cache import SessionAwareCache
from engine.front import Engine
from engine.link import Link
from engine.loop import Loop
from engine.messages import AnyCommand, AnyEvent, Ready
from engine.metrics import Counters
from engine.schedule import Scheduler
from engine.sessions import Sessions
from engine.text import StopWatch, Text
from tests.support.digest_runner import VOCABULARY, DigestRunner


def tiny_text(folder: Path) -> Path:
    """A tokenizer folder in which id n reads as one letter: 0 is 'a', 26 is 'A', then digits."""
    letters = (
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&()*+,-./:;<=>?@[]^_"
    )
    names = [*letters, *(f"~{n}" for n in range(VOCABULARY))][:VOCABULARY]
    tokenizer = Tokenizer(WordLevel({name: n for n, name in enumerate(names)}, unk_token="a"))
    tokenizer.decoder = ByteLevelDecoder()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    return folder


class Bench:
    """An engine and the parts a test may look at."""

    def __init__(
        self, engine: Engine, runner: DigestRunner, cache: SessionAwareCache, scheduler: Scheduler
    ) -> None:
        self.engine = engine
        self.runner = runner
        self.cache = cache
        self.scheduler = scheduler


@contextlib.asynccontextmanager
async def digest_engine(
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
) -> AsyncIterator[Bench]:
    limit = min(max_model_len, pages * page_size)
    geometry = Geometry(
        pages, page_size, limit, VOCABULARY, batched_tokens, steps_ahead, host_pages
    )
    runner = DigestRunner(geometry, step_s=step_s)
    cache = SessionAwareCache(pages, page_size, host_pages)
    scheduler = Scheduler(cache, batched_tokens, rows)
    counters = Counters()
    loop = Loop(runner, cache, scheduler, counters, audit_every_step=True)
    text = Text(str(folder))
    sessions = Sessions(
        cache,
        scheduler,
        geometry,
        counters,
        watch=lambda stops: StopWatch(stops, text.detokenizer()),
        emit=loop.emit,
        clock=time.monotonic,
    )
    link: Link[AnyEvent, AnyCommand] = Link(
        msgspec.msgpack.Decoder(list[AnyCommand]), loop.tell, lambda: None
    )
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().create_connection(lambda: link, sock=theirs)
    link.send(
        Ready(str(folder), "digest", "Digest", limit, VOCABULARY, pages, page_size, "none", "-", 0)
    )
    engine = Engine()
    running = asyncio.create_task(loop.run(sessions, link.send_all))
    try:
        await engine.connect(ours)
        yield Bench(engine, runner, cache, scheduler)
        assert not running.done(), running.exception()
    finally:
        loop.stop()
        await engine.stop()
        await running

"""Parts: an engine around one device, put together, in the one order that works. It knows nothing
of tensors: the device is whatever runs batches, a model, a clock or a chain of digests."""

import time
from typing import Generic, NamedTuple

from engine.batch import Runner, Ticket
from engine.cache import SessionAwareCache
from engine.config import EngineConfig
from engine.fronts import Fronts
from engine.loop import Loop
from engine.metrics import Counters
from engine.schedule import Scheduler
from engine.sessions import Sessions
from engine.text import StopWatch, Text


class Parts(NamedTuple, Generic[Ticket]):
    cache: SessionAwareCache
    scheduler: Scheduler
    loop: Loop[Ticket]
    sessions: Sessions
    fronts: Fronts

    async def run(self) -> None:
        """Until the loop is stopped."""
        await self.loop.run(self.sessions, self.fronts.send_all)


def assemble(
    runner: Runner[Ticket],
    text: Text,
    config: EngineConfig,
    scheduling: type[Scheduler] = Scheduler,
    digest: str = "",
) -> Parts[Ticket]:
    """`digest`: what the engine says of its model in Ready."""
    geometry, counters = runner.geometry, Counters()
    cache = SessionAwareCache(geometry.pages, geometry.page_size, geometry.host_pages)
    scheduler = scheduling(cache, geometry.batched_tokens, config.max_num_seqs)
    loop = Loop(runner, cache, scheduler, counters, audit_every_step=config.audit_every_step)
    sessions = Sessions(
        cache,
        scheduler,
        geometry,
        counters,
        watch=lambda stops: StopWatch(stops, text.detokenizer()),
        grammars=text.grammars(geometry.vocab_size, loop.wake),
        emit=loop.emit,
        clock=time.monotonic,
        digest=digest,
    )
    fronts = Fronts(loop.tell, sessions.load, config, time.monotonic, text.folder)
    return Parts(cache, scheduler, loop, sessions, fronts)

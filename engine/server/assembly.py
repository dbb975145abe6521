"""Parts: an engine around one device, put together, in the one order that works. It knows nothing
of tensors: the device is whatever runs batches, a model, a clock or a chain of digests."""

import time
from typing import Generic, NamedTuple

from continuo.engine.batch import Runner, Ticket
from continuo.engine.config import EngineConfig
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.loop import Loop
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sessions import Sessions
from continuo.engine.server.clients import Fronts
from continuo.engine.text import StopWatch, Text
from continuo.engine.wire.flight_recorder import FlightRecorder


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
    recorder: FlightRecorder | None = None,
) -> Parts[Ticket]:
    """`digest`: what the engine says of its model in Ready."""
    geometry, counters = runner.geometry, Counters()
    cache = SessionAwareCache(geometry.pages, geometry.page_size, geometry.host_pages)
    scheduler = scheduling(cache, geometry.batched_tokens, config.max_num_seqs)
    loop = Loop(
        runner,
        cache,
        scheduler,
        counters,
        recorder,
        audit_every_step=config.audit_every_step,
    )
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

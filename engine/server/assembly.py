"""Assembly of an engine core from its parts and a device. The device may be any Runner: a model, a
simulated clock, or the null device of the tests."""

import time
from typing import Generic, NamedTuple

from continuo.engine.batch import Runner, TicketT
from continuo.engine.config import EngineConfig
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.loop import EngineLoop
from continuo.engine.core.paged_backend import PagedBackend
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.sessions import Sessions
from continuo.engine.core.speculation import Speculation
from continuo.engine.core.transitions import RecordTurn
from continuo.engine.server.clients import Clients
from continuo.engine.text import ModelText
from continuo.engine.wire.flight_recorder import FlightRecorder


class EngineCore(NamedTuple, Generic[TicketT]):
    cache: SessionAwareCache
    scheduler: Scheduler
    loop: EngineLoop[TicketT]
    sessions: Sessions[Sequence]
    clients: Clients

    async def run(self) -> None:
        """Run until the loop is stopped."""
        await self.loop.run(self.sessions, self.clients.send_all)


def assemble(
    runner: Runner[TicketT],
    text: ModelText,
    config: EngineConfig,
    scheduler_type: type[Scheduler] = Scheduler,
    digest: str = "",
    recorder: FlightRecorder | None = None,
    record_turn: RecordTurn | None = None,
    speculation: Speculation | None = None,
) -> EngineCore[TicketT]:
    """Build the parts of an engine core. `digest` is the fingerprint that EngineReady reports.
    `record_turn`: as in `Sessions`. `speculation`: in place of that of `config`."""
    geometry, counters = runner.geometry, Counters()
    cache = SessionAwareCache.for_geometry(geometry, blanks_pages=config.audit_every_step)
    if speculation is None and config.speculative_config is not None:
        speculation = Speculation.configure(config.speculative_config, cache.tree)
    scheduler = scheduler_type(
        cache,
        geometry.batched_tokens,
        config.max_num_seqs,
        config.max_group_share,
        samples_late=geometry.samples_late,
        speculation=speculation,
    )
    loop = EngineLoop(
        runner,
        cache,
        scheduler,
        counters,
        recorder,
        speculation=speculation,
        audit_every_step=config.audit_every_step,
    )
    sessions = Sessions(
        PagedBackend(cache, scheduler, counters, geometry.state_bytes),
        geometry.max_model_len,
        geometry.vocab_size,
        make_stop_watch=text.create_stop_matcher,
        grammars=text.create_grammar_compiler(geometry.vocab_size, loop.wake),
        emit=loop.emit,
        clock=time.monotonic,
        digest=digest,
        record_turn=record_turn,
    )
    clients = Clients(loop.enqueue, sessions.measure_load, config, time.monotonic, text.folder)
    return EngineCore(cache, scheduler, loop, sessions, clients)

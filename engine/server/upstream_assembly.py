"""Assembly of an engine core whose ids another server computes."""

import asyncio
import time
from typing import NamedTuple

from continuo.engine.config import EngineConfig
from continuo.engine.core.sessions import Sessions
from continuo.engine.core.transitions import RecordTurn
from continuo.engine.server.clients import Clients
from continuo.engine.text import ModelText
from continuo.engine.upstream.backend import UpstreamBackend
from continuo.engine.upstream.loop import UpstreamLoop
from continuo.engine.upstream.model_check import ModelCheck
from continuo.engine.upstream.sequence import UpstreamSequence
from continuo.engine.upstream.server import UpstreamServer
from continuo.engine.upstream.turn_requests import TurnRequests
from continuo.engine.upstream.watch import ServerWatch
from continuo.engine.wire.messages import EngineReady


class UpstreamCore(NamedTuple):
    loop: UpstreamLoop
    sessions: Sessions[UpstreamSequence]
    clients: Clients
    backend: UpstreamBackend
    watch: ServerWatch

    async def run(self) -> None:
        """Run until the loop is stopped."""
        watching = asyncio.create_task(self.watch.run())
        try:
            await self.loop.run(self.sessions, self.clients.send_all)
        finally:
            watching.cancel()
            await self.backend.stop()


def assemble_upstream(
    server: UpstreamServer,
    check: ModelCheck,
    text: ModelText,
    ready: EngineReady,
    config: EngineConfig,
    record_turn: RecordTurn | None = None,
) -> UpstreamCore:
    """Build the parts of an engine core.

    Args:
    server: computes the ids.
    check: has compared the server.
    text: tokenizer and grammars.
    ready: what the engine reports of itself.
    config: options of the engine.
    record_turn: see `Sessions`.
    """
    loop, watch = UpstreamLoop(), ServerWatch(server, check)
    turns = TurnRequests(server, watch, loop, ready.vocab_size, time.monotonic)
    backend = UpstreamBackend(server, watch, turns, loop, ready.max_model_len)
    sessions = Sessions(
        backend,
        ready.max_model_len,
        ready.vocab_size,
        make_stop_watch=text.create_stop_matcher,
        grammars=text.create_grammar_compiler(ready.vocab_size, loop.wake),
        emit=loop.emit,
        clock=time.monotonic,
        digest=ready.digest,
        record_turn=record_turn,
    )
    clients = Clients(loop.enqueue, sessions.measure_load, config, time.monotonic, text.folder)
    return UpstreamCore(loop, sessions, clients, backend, watch)

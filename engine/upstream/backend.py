"""UpstreamBackend: what is done to one sequence by requests to another server.

The server has no sessions, or a slot for each: a turn sends the whole log, of which the server
computes what it has not cached. Ids are computed ahead of a turn as soon as they complete a cache
block.
"""

import asyncio
import logging
from array import array
from collections.abc import Collection, Coroutine
from typing import Any

from continuo.engine.core.turn import Turn
from continuo.engine.upstream.errors import ReplyLost, UpstreamError
from continuo.engine.upstream.sequence import UpstreamSequence
from continuo.engine.upstream.server import UpstreamServer
from continuo.engine.upstream.turn_requests import TurnReceiver, TurnRequests
from continuo.engine.upstream.watch import ServerWatch
from continuo.engine.wire.messages import EngineLoad, EngineStats, SessionInfo
from continuo.engine.wire.token_log import TokenLog
from continuo.engine.wire.turn_tree import common_prefix_length

log = logging.getLogger(__name__)

PREFILLS_MAX = 8
"""Maximum requests at a time that compute ids ahead, or half of those that the server computes at
once, if fewer: turns come first."""


class UpstreamBackend:
    """A SequenceBackend on another server. Owns the requests to it. Called by Sessions and
    Transitions, on the event loop; what the requests bring goes to the receiver of `turns`."""

    def __init__(
        self,
        server: UpstreamServer,
        watch: ServerWatch,
        turns: TurnRequests,
        receiver: TurnReceiver,
        max_model_len: int,
    ) -> None:
        """Args:
        server: computes the ids.
        watch: that of the server.
        turns: draws the output of turns.
        receiver: that of `turns`.
        max_model_len: tokens of the longest request, prompt and output.
        """
        self._server = server
        self._watch = watch
        self._turns = turns
        self._receiver = receiver
        self._max_model_len = max_model_len
        self._tasks: set[asyncio.Task[None]] = set()
        self._running_turns = 0
        prefills = max(min(PREFILLS_MAX, server.max_rows // 2), 1)
        self._prefill_permits = asyncio.Semaphore(prefills)

    async def stop(self) -> None:
        """Close all requests."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- sequences ------------------------------------------------------------------------

    def open(
        self, session: str, scope: str, log: TokenLog, timeout_s: float | None, now: float
    ) -> UpstreamSequence:
        return UpstreamSequence(session, scope, log, timeout_s, now)

    def fork(
        self, parent: UpstreamSequence, session: str, log: TokenLog, now: float
    ) -> UpstreamSequence:
        child = UpstreamSequence(session, parent.scope, log, parent.timeout_s, now)
        self._server.fork(parent.id, session)
        if not self._server.has_slots:
            child.computed = min(parent.computed, log.length)
        return child

    def close(self, sequence: UpstreamSequence, shared_tokens: int) -> None:  # noqa: ARG002
        """Release the slot of a sequence. What a prefix cache holds of it stays until evicted."""
        self._server.close(sequence.id)

    # ---- the log --------------------------------------------------------------------------

    def extend(
        self,
        sequence: UpstreamSequence,
        kept: int,
        *,
        is_moved: bool = False,  # noqa: ARG002
    ) -> None:
        self.rewind(sequence, kept)

    def rewind(self, sequence: UpstreamSequence, kept: int) -> None:
        sequence.computed = min(sequence.computed, kept)
        sequence.suspicion.keep(kept)
        if kept < len(sequence.prefilled_ids):
            _cancel(sequence.prefill)
            sequence.prefill, sequence.prefilled_ids = None, array("i")
        self.compute_ahead(sequence)

    def compute_ahead(self, sequence: UpstreamSequence) -> None:
        """Compute the log of an idle sequence, if it has completed another cache block."""
        block, length = self._server.reuse_tokens, len(sequence.ids)
        if sequence.prefill is not None or sequence.turn is not None:
            return
        if not self._watch.is_usable or length >= self._max_model_len:
            return
        if self._turns.count_losses(sequence):  # a turn shows whether the log is the cause
            return
        if length // block > sequence.computed // block:
            sequence.prefilled_ids = sequence.ids[:]
            sequence.prefill = self._spawn(self._prefill(sequence, sequence.prefilled_ids))

    async def _prefill(self, sequence: UpstreamSequence, ids: "array[int]") -> None:
        """Compute `ids`, then what the log has got meanwhile. A failure is not repeated before the
        log changes: the turn computes the ids too."""
        try:
            async with self._prefill_permits:
                await self._server.prefill(sequence.id, ids, sequence.scope)
        except UpstreamError as error:
            if isinstance(error, ReplyLost):
                self._turns.add_loss(sequence, len(ids))
            log.debug("ids of session %s were not computed ahead: %s", sequence.id, error)
            has_computed = False
        else:
            has_computed = True
        if sequence.prefill is not asyncio.current_task():
            return
        sequence.prefill, sequence.prefilled_ids = None, array("i")
        if has_computed:
            common = common_prefix_length(sequence.ids, ids)
            if common > sequence.computed:
                sequence.count_ahead(sequence.computed, common - sequence.computed)
                sequence.computed = common
            self.compute_ahead(sequence)

    def stop_computing(self, sequence: UpstreamSequence) -> None:
        _cancel(sequence.prefill)
        sequence.prefill, sequence.prefilled_ids = None, array("i")

    def isolate(self, sequence: UpstreamSequence, extra_tokens: int) -> None:
        """Do nothing: the crash of another server does not end this process."""

    def find_cached(self, sequence: UpstreamSequence) -> None:
        """Do nothing: the server finds what it has cached when it gets a request."""

    # ---- turns ----------------------------------------------------------------------------

    def begin_turn(self, sequence: UpstreamSequence, turn: Turn) -> None:
        """Request the output of a turn. In a slot it waits for ids that are computed ahead, which
        it would have to compute itself; elsewhere it overtakes them."""
        if not self._server.has_slots:
            self.stop_computing(sequence)
        turn.residency = "none" if self._server.has_slots else "unknown"
        self._running_turns += 1
        sequence.request = self._spawn(self._draw(sequence, turn))

    async def _draw(self, sequence: UpstreamSequence, turn: Turn) -> None:
        try:
            await self._turns.draw(sequence, turn)
        except Exception as error:
            log.exception("turn %s failed because of a bug in the engine", turn.id)
            self._receiver.fail_turn(sequence, turn, f"{type(error).__name__}: {error}")

    def end_turn(
        self,
        sequence: UpstreamSequence,
        turn: Turn,
        now: float,  # noqa: ARG002
        *,
        is_paused: bool,  # noqa: ARG002
    ) -> float:
        """Close the request of a turn. Returns 0: how long the server has computed is unknown."""
        self._running_turns -= 1
        turn.computed_tokens = turn.prompt_tokens - (turn.cached_tokens or 0)
        _cancel(sequence.request)
        sequence.request = None
        sequence.computed = min(sequence.computed, len(sequence.ids))
        return 0.0

    # ---- between turns --------------------------------------------------------------------

    def settle(self, sequence: UpstreamSequence) -> None:
        """Do nothing: no ids are in flight after the end of a turn."""

    def mark_idle(self, sequence: UpstreamSequence) -> None:
        """Do nothing: the server evicts by its own rules."""

    # ---- reports --------------------------------------------------------------------------

    def info(self, sequence: UpstreamSequence, now: float) -> SessionInfo:
        is_prefilling = sequence.prefill is not None
        computed = min(sequence.computed, len(sequence.ids))
        place = self._server.find_kv(sequence.id)
        return SessionInfo(
            session=sequence.id,
            streaming=sequence.log.turn_tree is None,
            state="generating" if sequence.turn else "prefilling" if is_prefilling else "idle",
            length=sequence.log.length,
            provisional=sequence.log.provisional,
            committed=computed if place in ("device", "unknown") else 0,
            held_pages=0,
            host_pages=0,
            host_tokens=computed if place == "host" else 0,
            lost_tokens=computed if place == "none" else 0,
            turn=sequence.turn.id if sequence.turn else None,
            idle_s=now - sequence.last_used_s,
            is_kv_known=place != "unknown",
        )

    def load(self, sessions: int, now: float, *, draining: bool) -> EngineLoad:  # noqa: ARG002
        """Report the load of the server. One that does not answer, or has another model, gets no
        new sessions."""
        total, used = self._count_pages()
        return EngineLoad(
            sessions=sessions,
            turns=self._running_turns,
            rows=self._server.max_rows,
            pages_leased=used,
            pages_total=max(total, 1),
            draining=draining or not self._watch.is_usable,
        )

    def stats(self, sequences: Collection[UpstreamSequence]) -> EngineStats:
        total, used = self._count_pages()
        return EngineStats(
            pages_total=total,
            pages_free=total - used,
            pages_tree=0,
            pages_leased=used,
            sessions=len(sequences),
            active_turns=self._running_turns,
            queued_turns=sum(sequence.deferred.queued_turns for sequence in sequences),
            steps=0,
            tokens_computed=0,
            tokens_drawn=self._turns.tokens_drawn,
            model_s=0.0,
            failed_steps=0,
            failed_audits=0,
            retractions=0,
            evicted_pages=0,
            host_pages_total=0,
            host_pages_used=0,
            pages_spilled=0,
            pages_recalled=0,
            waiting_turns=self._watch.load.waiting,
        )

    def _count_pages(self) -> tuple[int, int]:
        """Return the server's cache blocks, and those in use."""
        load, block = self._watch.load, self._server.reuse_tokens
        total = load.kv_tokens // block
        return total, min(load.kv_tokens_used // block, total)

    # ---- inside ---------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _cancel(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, unless it is the one that runs: this one ends by itself."""
    if task is not None and task is not asyncio.current_task():
        task.cancel()

"""PagedBackend: what is done to one sequence in the KV cache and the scheduler of this engine."""

from collections.abc import Collection

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.stats import engine_load, engine_stats, session_info
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import EngineLoad, EngineStats, SessionInfo
from continuo.engine.wire.token_log import TokenLog


class PagedBackend:
    """A SequenceBackend of paged KV and batched steps. Called by Sessions and Transitions, between
    steps; EngineLoop collects what the steps have drawn. Knows no commands and emits no events."""

    def __init__(
        self, cache: SessionAwareCache, scheduler: Scheduler, counters: Counters, state_bytes: int
    ) -> None:
        """`state_bytes`: bytes of a state slot."""
        self._cache = cache
        self._scheduler = scheduler
        self._counters = counters
        self._state_bytes = state_bytes

    # ---- sequences ------------------------------------------------------------------------

    def open(
        self, session: str, scope: str, log: TokenLog, timeout_s: float | None, now: float
    ) -> Sequence:
        return Sequence(session, self._cache.open(scope), log, timeout_s, now)

    def fork(self, parent: Sequence, session: str, log: TokenLog, now: float) -> Sequence:
        cache, lease, at = self._cache, parent.lease, len(log.ids)
        cache.mark_busy(lease)
        cache.recall(lease, at)
        forked = cache.fork(lease, parent.ids, at, parent.log.length)
        if not lease.reserved and (parent.turn is None or not parent.turn.is_admitted):
            cache.mark_idle(lease)
        child = Sequence(session, forked, log, parent.timeout_s, now)
        child.committed_high_water = min(parent.committed_high_water, at)
        return child

    def close(self, sequence: Sequence, shared_tokens: int) -> None:
        self._cache.close(sequence.lease, sequence.ids, shared_tokens)

    # ---- the log --------------------------------------------------------------------------

    def extend(self, sequence: Sequence, kept: int, *, is_moved: bool = False) -> None:
        self._rewind_kv(sequence, kept)
        self.compute_ahead(sequence)
        if is_moved:
            sequence.committed_high_water = sequence.log.length
        if not sequence.turn_count:
            sequence.publish_to = sequence.log.length

    def rewind(self, sequence: Sequence, kept: int) -> None:
        if sequence.in_flight:  # KV is cut when the step is collected
            sequence.committed_high_water = min(sequence.committed_high_water, kept)
            return
        self._rewind_kv(sequence, kept)
        self.compute_ahead(sequence)

    def _rewind_kv(self, sequence: Sequence, to: int) -> None:
        self._cache.rewind(sequence.lease, to)
        if sequence.committed_high_water > to:
            sequence.committed_high_water = to
        if sequence.publish_to > to:
            sequence.publish_to = to

    def compute_ahead(self, sequence: Sequence) -> None:
        """Schedule an idle session's owed ids (see sequence.py) for prefill when there is time, or
        unschedule the session if it owes none that are worth computing before a turn."""
        if self._cache.prefill_end(len(sequence.ids)) > sequence.launched:
            self._scheduler.add_append(sequence)
        else:
            self._scheduler.remove(sequence)

    def stop_computing(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)

    def isolate(self, sequence: Sequence, extra_tokens: int) -> None:
        self._scheduler.fault_isolation.add_suspect(sequence, extra_tokens)

    def find_cached(self, sequence: Sequence) -> None:
        self._cache.match(sequence.lease, sequence.ids, len(sequence.ids))
        self.mark_idle(sequence)

    # ---- turns ----------------------------------------------------------------------------

    def begin_turn(self, sequence: Sequence, turn: Turn) -> None:
        length = len(sequence.ids)
        self._rewind_kv(sequence, length)
        self._cache.components.begin_turn(
            sequence.lease, turn.prompt_tokens, keeps_answer=sequence.log.turn_tree is None
        )
        turn.model_s_at_request = self._counters.model_s_at(turn.requested_s)
        if sequence.turn_count == 1:
            sequence.publish_to = length
        self._scheduler.add_turn(sequence)

    def end_turn(self, sequence: Sequence, turn: Turn, now: float, *, is_paused: bool) -> float:
        self._cache.components.end_turn(sequence.lease)
        length = len(sequence.ids)
        if sequence.committed_high_water > length:
            sequence.committed_high_water = length
        sequence.worst_residency = "none"
        self._scheduler.remove(sequence)
        if turn.output_tokens and not is_paused:
            self._scheduler.admission.outputs.observe(turn.output_tokens)
        return self._counters.model_s_at(now) - turn.model_s_at_request

    # ---- between turns --------------------------------------------------------------------

    def settle(self, sequence: Sequence) -> None:
        self._cache.rewind(sequence.lease, len(sequence.ids))
        if sequence.log.turn_tree is not None:
            self._cache.publish(sequence.lease, sequence.ids, sequence.log.length)

    def mark_idle(self, sequence: Sequence) -> None:
        self._cache.mark_idle(sequence.lease)

    # ---- reports --------------------------------------------------------------------------

    def info(self, sequence: Sequence, now: float) -> SessionInfo:
        return session_info(self._cache, sequence, now)

    def load(self, sessions: int, now: float, *, draining: bool) -> EngineLoad:
        step_s = self._counters.step_s(now)
        return engine_load(
            self._cache, self._scheduler, sessions=sessions, draining=draining, step_s=step_s
        )

    def stats(self, sequences: Collection[Sequence]) -> EngineStats:
        return engine_stats(
            self._cache, self._scheduler, self._counters, sequences, self._state_bytes
        )

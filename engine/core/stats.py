"""Snapshots for reports: of one session, of the engine's load, and of its counters."""

from collections.abc import Collection

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.wire.messages import EngineLoad, EngineStats, SessionInfo


def session_info(sequence: Sequence, now: float) -> SessionInfo:
    resident = sequence.lease.resident_tokens
    return SessionInfo(
        session=sequence.id,
        streaming=sequence.log.turn_tree is None,
        state="generating" if sequence.turn else "prefilling" if sequence.in_flight else "idle",
        length=sequence.log.length,
        provisional=sequence.log.provisional,
        committed=sequence.committed,
        held_pages=len(sequence.lease.pages),
        host_pages=len(sequence.lease.host_pages),
        host_tokens=resident - sequence.committed,
        lost_tokens=max(sequence.committed_high_water - resident, 0),
        turn=sequence.turn.id if sequence.turn else None,
        idle_s=now - sequence.last_used_s,
    )


def engine_load(
    cache: SessionAwareCache,
    scheduler: Scheduler,
    *,
    sessions: int,
    draining: bool,
    step_s: float,
) -> EngineLoad:
    """Return the load of the engine; O(1)."""
    return EngineLoad(
        sessions=sessions,
        turns=scheduler.turns,
        rows=scheduler.max_rows,
        pages_leased=cache.leased_pages,
        pages_total=cache.pool.total,
        draining=draining,
        step_s=step_s,
    )


def engine_stats(
    cache: SessionAwareCache,
    scheduler: Scheduler,
    counters: Counters,
    sequences: Collection[Sequence],
) -> EngineStats:
    return EngineStats(
        pages_total=cache.pool.total,
        pages_free=cache.pool.free_count,
        pages_tree=cache.tree.size,
        pages_leased=cache.leased_pages,
        sessions=len(sequences),
        active_turns=scheduler.turns,
        queued_turns=sum(sequence.deferred.queued_turns for sequence in sequences),
        steps=counters.steps,
        tokens_computed=counters.tokens_computed,
        tokens_drawn=counters.tokens_drawn,
        model_s=counters.model_s,
        failed_steps=counters.failed_steps,
        failed_audits=counters.failed_audits,
        retractions=scheduler.retractions,
        evicted_pages=cache.evicted_pages,
        host_pages_total=cache.host_tier.pool.total,
        host_pages_used=cache.host_tier.used_pages,
        pages_spilled=cache.host_tier.spilled_pages,
        pages_recalled=cache.host_tier.recalled_pages,
    )

"""Snapshots for reports: of one session, of the engine's load, and of its counters."""

from collections.abc import Collection

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.wire.messages import EngineLoad, EngineStats, SessionInfo


def session_info(cache: SessionAwareCache, sequence: Sequence, now: float) -> SessionInfo:
    resident = sequence.lease.resident_tokens
    return SessionInfo(
        session=sequence.id,
        streaming=sequence.log.turn_tree is None,
        state="generating" if sequence.turn else "prefilling" if sequence.in_flight else "idle",
        length=sequence.log.length,
        provisional=sequence.log.provisional,
        committed=sequence.committed,
        held_pages=cache.usage.held_pages(sequence.lease),
        host_pages=cache.usage.held_host_pages(sequence.lease),
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
    """Return the load of the engine; O(1). Its pages are those of the scarcest pool."""
    scarcest = cache.usage.scarcest()
    return EngineLoad(
        sessions=sessions,
        turns=len(scheduler.admission.turns),
        rows=scheduler.max_rows,
        pages_leased=scarcest.leased,
        pages_total=max(scarcest.total, 1),
        draining=draining,
        step_s=step_s,
    )


def engine_stats(
    cache: SessionAwareCache,
    scheduler: Scheduler,
    counters: Counters,
    sequences: Collection[Sequence],
    state_bytes: int,
) -> EngineStats:
    """Return the counters and gauges of the engine. `state_bytes`: bytes of a state slot."""
    on_host = sum(1 for sequence in sequences if sequence.lease.host_pages)
    on_device = sum(
        1 for sequence in sequences if sequence.committed and not sequence.lease.host_pages
    )
    pages = cache.usage.count_pages()
    return EngineStats(
        pages_total=pages.total,
        pages_free=pages.free,
        pages_tree=pages.tree,
        pages_leased=pages.leased,
        sessions=len(sequences),
        active_turns=len(scheduler.admission.turns),
        queued_turns=sum(sequence.deferred.queued_turns for sequence in sequences),
        steps=counters.steps,
        tokens_computed=counters.tokens_computed,
        tokens_drawn=counters.tokens_drawn,
        model_s=counters.model_s,
        failed_steps=counters.failed_steps,
        failed_audits=counters.failed_audits,
        retractions=scheduler.admission.retractions,
        evicted_pages=cache.evicted_pages,
        host_pages_total=cache.host_tier.pool.total,
        host_pages_used=cache.host_tier.used_pages,
        pages_spilled=cache.host_tier.spilled_pages,
        pages_recalled=cache.host_tier.recalled_pages,
        waiting_turns=scheduler.admission.waiting_turns,
        sessions_on_device=on_device,
        sessions_on_host=on_host,
        audits=counters.audits,
        state_bytes_spilled=cache.host_tier.spilled_states * state_bytes,
        draft_rows=counters.draft_rows,
        draft_tokens=counters.draft_tokens,
        accepted_tokens=counters.accepted_tokens,
        **_state_gauges(cache, state_bytes),
    )


def _state_gauges(cache: SessionAwareCache, state_bytes: int) -> dict[str, int]:
    states = cache.components.states
    if states is None:
        return {}
    pool, host = states.pool, states.host_pool
    return {
        "state_bytes_total": pool.total * state_bytes,
        "state_bytes_used": (pool.total - pool.free_count) * state_bytes,
        "host_state_bytes_total": host.total * state_bytes,
        "host_state_bytes_used": (host.total - host.free_count) * state_bytes,
    }

"""Restoring the KV that is kept of a sequence, on the host or in the radix tree, before rows of it
are planned."""

from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.sequence import Sequence
from continuo.engine.wire.messages import KVResidency

RESIDENCY_ORDER: tuple[KVResidency, ...] = ("none", "hot", "host", "recomputed")
"""Residencies by increasing cost of restoring a sequence's KV; "none": no KV had been computed. If
KV was restored several times before a turn, the turn reports the costliest."""


def restore_kv(cache: SessionAwareCache, sequence: Sequence, *, match_shared: bool = False) -> None:
    """Mark the lease busy and restore all available KV of the log: spilled pages are recalled;
    shared pages are matched if KV is missing that was computed, or if `match_shared`."""
    lease, length = sequence.lease, len(sequence.ids)
    cache.mark_busy(lease)
    recalled = bool(lease.host_pages) and cache.recall(lease)
    known = min(sequence.committed_high_water, length)
    if not lease.committed or lease.committed < known or match_shared:
        _match(cache, sequence)
    residency = _residency(lease.committed, lost=lease.committed < known, recalled=recalled)
    if RESIDENCY_ORDER.index(residency) > RESIDENCY_ORDER.index(sequence.worst_residency):
        sequence.worst_residency = residency


def match_prompt(cache: SessionAwareCache, sequence: Sequence) -> None:
    """Match the shared pages of a first prompt again, because others may have published more of it
    meanwhile."""
    turn, lease = sequence.turn, sequence.lease
    assert turn is not None
    if sequence.in_flight:
        return
    known = lease.committed
    _match(cache, sequence)
    if lease.committed <= known:
        return
    if turn.is_admitted:
        cache.rewind(lease, len(sequence.ids) - 1)
    else:
        cache.mark_idle(lease)


def _match(cache: SessionAwareCache, sequence: Sequence) -> None:
    ids = sequence.ids
    cache.match(sequence.lease, ids, cache.match_end(len(ids)), sequence.publish_to)


def _residency(committed: int, *, lost: bool, recalled: bool) -> KVResidency:
    if lost:
        return "recomputed"
    if recalled:
        return "host"
    return "hot" if committed else "none"

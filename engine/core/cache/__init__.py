"""Ownership of KV pages. Plain Python: knows no torch, no session protocol, no time."""

from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.session_aware_cache import SessionAwareCache

__all__ = ["PageLease", "SessionAwareCache"]

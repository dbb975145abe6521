"""Ownership of KV pages. Plain Python, independent of torch, of the session protocol and of
time."""

from continuo.engine.core.cache.lease import PageLease
from continuo.engine.core.cache.session_aware_cache import SessionAwareCache

__all__ = ["PageLease", "SessionAwareCache"]

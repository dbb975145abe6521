"""Who owns which KV page. Plain Python: knows no torch, no session protocol, no time."""

from engine.cache.lease import Lease
from engine.cache.session_aware import SessionAwareCache

__all__ = ["Lease", "SessionAwareCache"]

"""The limit of open file descriptors, of which each connection takes one."""

import logging
import resource

from continuo.realtime.limits import Limits

log = logging.getLogger(__name__)

RESERVED_DESCRIPTORS = 256
"""Descriptors for everything besides connections of sessions: store, engines, files, and requests
over HTTP."""


def count_required(limits: Limits) -> int:
    """Return the number of descriptors that a gateway with all its sessions connected needs."""
    return limits.connected_sessions_max + RESERVED_DESCRIPTORS


def raise_limit() -> int:
    """Raise the limit of this process as far as the system allows, and return it. Systems start
    processes with a low limit because of programs that call select(2), which we do not."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def warn_if_too_few(allowed: int, limits: Limits) -> None:
    """Log a warning if `allowed` descriptors are too few for all sessions of a gateway."""
    required = count_required(limits)
    if allowed != resource.RLIM_INFINITY and allowed < required:
        log.warning(
            "this process may open %d file descriptors, and %d sessions need %d: raise the hard "
            "limit (ulimit -Hn; LimitNOFILE of systemd)",
            allowed,
            limits.connected_sessions_max,
            required,
        )

"""Security events: wrong keys, foreign origins, malformed frames. Each is counted, and logged as a
warning, within the limit on lines of a kind."""

import logging
import time
from collections.abc import Callable

from continuo.engine import LineLimit
from continuo.realtime import metrics

log = logging.getLogger(__name__)


class SecurityLog:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = LineLimit(clock)

    def report(self, event: str, client: tuple[str, int] | None, **fields: object) -> None:
        """Report one event. `client`: address and port of the peer. `fields` must have no key and
        nothing that users write."""
        metrics.security_events.labels(event).inc()
        suppressed = self._limit.admit(event)
        if suppressed is None:
            return
        shown = {
            "event": event,
            "client": client[0] if client else None,
            "suppressed": suppressed or None,
            **fields,
        }
        known = {name: value for name, value in shown.items() if value is not None}
        log.warning("security event", extra={"fields": known})


security_log = SecurityLog()
"""The log of this process."""

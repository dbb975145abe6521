"""Security events: wrong keys, foreign origins, malformed frames. Each is counted, and logged as a
warning, at most LINES_PER_MINUTE of a kind, so that a flood fills neither log nor disk."""

import logging
import time
from collections.abc import Callable

from continuo.realtime import metrics

log = logging.getLogger(__name__)

LINES_PER_MINUTE = 10


class SecurityLog:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}
        """Start of the present minute, and events since then, by kind of event."""

    def report(self, event: str, client: tuple[str, int] | None, **fields: object) -> None:
        """Report one event. `client`: address and port of the peer. `fields` must have no key and
        nothing that users write."""
        metrics.security_events.labels(event).inc()
        now, suppressed = self._clock(), 0
        began, count = self._windows.get(event, (now, 0))
        if now - began >= 60:
            began, suppressed, count = now, max(count - LINES_PER_MINUTE, 0), 0
        self._windows[event] = began, count + 1
        if count < LINES_PER_MINUTE:
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

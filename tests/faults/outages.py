"""Repetition of trials in which a machine that is too busy for Redis has caused an outage of it."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from continuo.realtime.store.health_probe import HealthProbe

ATTEMPTS_MAX = 4


class Outages:
    """Counts the calls that Redis has not answered in time."""

    def __init__(self) -> None:
        self.count = 0

    async def repeat_disturbed(self, trial: Callable[[], Awaitable[None]]) -> None:
        """Run a trial, and again if it fails and Redis did not answer meanwhile: what holds then is
        the subject of other rows."""
        for _ in range(ATTEMPTS_MAX - 1):
            before = self.count
            try:
                return await trial()
            except Exception:
                if self.count == before:
                    raise
        return await trial()


@contextmanager
def counted_outages() -> Iterator[Outages]:
    outages, report_failure = Outages(), HealthProbe.report_failure

    def count_failure(probe: HealthProbe, cause: str, *, is_timeout: bool = False) -> None:
        outages.count += 1
        report_failure(probe, cause, is_timeout=is_timeout)

    with patch.object(HealthProbe, "report_failure", count_failure):
        yield outages

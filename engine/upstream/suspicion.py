"""Suspicion: losses of the server that count against the ids of one session. Pure.

    losses    consequence
    1         the request is sent again when the server answers
    2         suspect: sent again while no other suspect's request is computed
    3         the turn fails, and the ids are not sent again

A loss counts against every request that the server was computing. Ids drawn after it, or an end of
the output, clear the session. So does a rewind into the ids that were sent.
"""

SUSPECT_LOSSES = 2
REFUSED_LOSSES = 3
EVIDENCE_WINDOW_S = 600.0
"""Seconds for which a loss counts. Older losses are no evidence, because servers also die from
other causes."""
IDS_TO_CLEAR = 4
"""Ids drawn after a loss that clear a session."""


class Suspicion:
    __slots__ = ("_last_loss_s", "_losses", "_sent_tokens")

    def __init__(self) -> None:
        self._losses = 0
        self._last_loss_s = 0.0
        self._sent_tokens = 0
        """Length of the log that the server was lost with."""

    def add_loss(self, sent_tokens: int, now: float) -> None:
        """Count a loss against a log of `sent_tokens` ids. `now`: seconds of the monotonic
        clock."""
        self._losses = self.count(now) + 1
        self._last_loss_s, self._sent_tokens = now, sent_tokens

    def count(self, now: float) -> int:
        """Return the number of losses that count."""
        return self._losses if now - self._last_loss_s < EVIDENCE_WINDOW_S else 0

    def is_suspect(self, now: float) -> bool:
        return self.count(now) >= SUSPECT_LOSSES

    def is_refused(self, now: float) -> bool:
        return self.count(now) >= REFUSED_LOSSES

    def keep(self, tokens: int) -> None:
        """Clear the session if not all ids that were sent are among the first `tokens` of its
        log."""
        if tokens < self._sent_tokens:
            self.clear()

    def clear(self) -> None:
        self._losses = self._sent_tokens = 0

"""UpstreamSequence: the ids of a session, and its requests to another server."""

import asyncio
from array import array

from continuo.engine.core.token_sequence import TokenSequence
from continuo.engine.upstream.suspicion import Suspicion
from continuo.engine.wire.token_log import TokenLog


class UpstreamSequence(TokenSequence):
    """Always: at most one request draws ids, and at most one computes ids ahead of a turn."""

    __slots__ = ("computed", "prefill", "prefilled_ids", "request", "scope", "suspicion")

    def __init__(
        self, session_id: str, scope: str, log: TokenLog, timeout_s: float | None, now: float
    ) -> None:
        """Args:
        session_id: id of the session.
        scope: within which its KV is shared.
        log: its ids.
        timeout_s: its idle timeout in seconds; None: none.
        now: seconds of the monotonic clock.
        """
        super().__init__(session_id, log, timeout_s, now)
        self.scope = scope
        self.computed = 0
        """Ids at the start of the log that the server has computed, and may have evicted since."""
        self.request: asyncio.Task[None] | None = None
        """Draws the output of the running turn."""
        self.prefill: asyncio.Task[None] | None = None
        """Computes `prefilled_ids` ahead of a turn."""
        self.prefilled_ids: array[int] = array("i")
        self.suspicion = Suspicion()
        """Losses of the server that count against the log."""

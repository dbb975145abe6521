"""Sequence: the ids of a session, and how far their KV is computed.

    committed  ≤  launched  ≤  len(ids) + promised

`committed` tokens have KV in the lease; `launched` adds those whose KV is in flight; `promised` ids
will be drawn by launched steps. The tokens after `launched` are owed: their KV must still be
computed. There is no prefill phase and no decode phase: a step computes some owed tokens, and draws
an id if it reaches the last one and a turn is running.
"""

from continuo.engine.core.cache import PageLease
from continuo.engine.core.token_sequence import TokenSequence
from continuo.engine.wire.flight_recorder import hash_session_id
from continuo.engine.wire.messages import KVResidency
from continuo.engine.wire.token_log import TokenLog


class Sequence(TokenSequence):
    """A session in the engine core: its ids, its lease on KV pages and its turn."""

    __slots__ = (
        "committed_high_water",
        "last_feed",
        "lease",
        "promised",
        "publish_to",
        "session_hash",
        "worst_residency",
    )

    def __init__(
        self, session_id: str, lease: PageLease, log: TokenLog, timeout_s: float | None, now: float
    ) -> None:
        """Args:
        session_id: id of the session.
        lease: its pages, which the sequence has until it is closed.
        log: its ids, without those in flight.
        timeout_s: seconds of idleness after which the session ends; None: it does not end by that.
        now: when it was last used, by the engine's clock.
        """
        super().__init__(session_id, log, timeout_s, now)
        self.session_hash = hash_session_id(session_id)
        """Digest of the id for the flight recorder."""
        self.lease = lease
        self.promised = 0
        self.last_feed: tuple[int, int] = (-1, -1)
        """(batch number, row index) of the row that draws the last promised id."""
        self.publish_to = 0
        """Publish the pages of ids[:publish_to] as they are committed; 0: nothing to publish. Only
        up to the end of the first prompt, ids are looked up in the radix tree even if the lease has
        KV, and are published there page by page."""
        self.committed_high_water = 0
        """Tokens of the current ids that have ever had KV, here or on a previous engine. If fewer
        are committed, KV was lost and is recomputed."""
        self.worst_residency: KVResidency = "none"
        """The slowest KV residency found since the end of the last turn."""

    @property
    def committed(self) -> int:
        return self.lease.committed

    @property
    def launched(self) -> int:
        return self.lease.launched

    @property
    def in_flight(self) -> int:
        """Tokens whose KV is being written."""
        return self.lease.reserved

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or tokens are in flight; then commands must not change log and
        lease."""
        return self.turn is not None or self.lease.reserved > 0

    @property
    def promised_end(self) -> int:
        return len(self.ids) + self.promised

    @property
    def uncached_tokens(self) -> int:
        """Tokens of the log whose KV is neither computed, nor on the host, nor in flight."""
        lease = self.lease
        known = lease.committed + lease.reserved
        if lease.host_pages and lease.host_end > known:
            known = lease.host_end
        return len(self.ids) - known

    @property
    def owed(self) -> int:
        lease = self.lease
        return len(self.ids) + self.promised - lease.committed - lease.reserved

    @property
    def can_draw(self) -> bool:
        """Whether a turn is running and one more output id would not exceed its limit."""
        turn = self.turn
        return turn is not None and turn.launched_tokens < turn.max_output_tokens

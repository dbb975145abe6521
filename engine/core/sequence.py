"""Sequence: the ids of a session, and how far their KV is computed.

    committed  ≤  launched  ≤  len(ids) + promised

`committed` tokens have KV in the lease; `launched` adds those whose KV is in flight; `promised` ids
will be drawn by launched steps. The tokens after `launched` are owed: their KV must still be
computed. There is no prefill phase and no decode phase: a step computes some owed tokens, and draws
an id if it reaches the last one and a turn is running.
"""

from array import array

from continuo.engine.core.cache import PageLease
from continuo.engine.core.deferred_commands import DeferredCommands
from continuo.engine.core.turn import Turn
from continuo.engine.wire.flight_recorder import hash_session_id
from continuo.engine.wire.messages import (
    AttachSession,
    CloseSession,
    ForkSession,
    KVResidency,
    TurnEnded,
)
from continuo.engine.wire.token_log import TokenLog


class Sequence:
    """A session in the engine core: its ids, its lease on KV pages and its turn."""

    __slots__ = (
        "closing_command",
        "committed_high_water",
        "deferred",
        "deferred_span",
        "group",
        "id",
        "ids",
        "last_feed",
        "last_turn_ended",
        "last_used_s",
        "lease",
        "log",
        "opening_command",
        "paused_turn",
        "promised",
        "publish_to",
        "session_hash",
        "timeout_s",
        "turn",
        "turn_count",
        "weight",
        "worst_residency",
    )

    def __init__(
        self, session_id: str, lease: PageLease, log: TokenLog, timeout_s: float | None, now: float
    ) -> None:
        self.id = session_id
        self.session_hash = hash_session_id(session_id)
        """Digest of the id for the flight recorder."""
        self.lease = lease
        self.log = log
        self.ids = log.ids
        """`log.ids` itself, not a copy."""
        self.timeout_s = timeout_s
        self.group = ""
        """Group that shares rows, pages and prefill fairly with the other groups."""
        self.weight = 1.0
        """Share of the group, relative to those of other groups."""
        self.promised = 0
        self.last_feed: tuple[int, int] = (-1, -1)
        """(batch number, row index) of the row that draws the last promised id."""
        self.turn: Turn | None = None
        self.last_turn_ended: TurnEnded | None = None
        """TurnEnded of the last turn; for a paused turn, its state when it was paused."""
        self.paused_turn: Turn | None = None
        self.turn_count = 0
        """Number of turns begun. Only up to the end of the first prompt, ids are looked up in the
        radix tree even if the lease has KV, and are published there page by page."""
        self.publish_to = 0
        """Publish the pages of ids[:publish_to] as they are committed; 0: nothing to publish."""
        self.deferred_span: array[int] = array("i")
        """Provisional span kept out of the log while a turn runs, and put back when the turn
        ends."""
        self.committed_high_water = 0
        """Tokens of the current ids that have ever had KV, here or on a previous engine. If fewer
        are committed, KV was lost and is recomputed."""
        self.deferred = DeferredCommands()
        """Commands that wait until neither a turn nor a step is in flight."""
        self.closing_command: CloseSession | None = None
        self.opening_command: AttachSession | ForkSession | None = None
        """The command that opened the session; None once it has taken effect."""
        self.worst_residency: KVResidency = "none"
        """The slowest KV residency found since the end of the last turn."""
        self.last_used_s = now

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
    def is_paused(self) -> bool:
        return self.paused_turn is not None

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or tokens are in flight; then commands must not change log and
        lease."""
        return self.turn is not None or self.lease.reserved > 0

    @property
    def promised_end(self) -> int:
        return len(self.ids) + self.promised

    @property
    def owed(self) -> int:
        lease = self.lease
        return len(self.ids) + self.promised - lease.committed - lease.reserved

    def has_emitted(self, turn: str, prompt: int, ids: "array[int]") -> bool:
        """Return whether the running or last turn has the id `turn` and the prompt ids[:prompt],
        and has emitted ids[prompt:]."""
        if self.turn is not None:
            known, began, length = self.turn.id, self.turn.prompt_tokens, len(self.ids)
        elif self.last_turn_ended is not None:
            known, began = self.last_turn_ended.turn, self.last_turn_ended.prompt_tokens
            length = min(self.last_turn_ended.length, len(self.ids))
        else:
            return False
        same = known == turn and began == prompt and len(ids) <= length
        return same and self.ids[: len(ids)] == ids

    @property
    def can_draw(self) -> bool:
        """Whether a turn is running and one more output id would not exceed its limit."""
        turn = self.turn
        return turn is not None and turn.launched_tokens < turn.max_output_tokens

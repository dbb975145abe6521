"""Sequence: its ids, how many of them reached KV, what is owed. Turn: one answer in the making.

    committed  ≤  launched  ≤  len(ids) + promised

`committed` is what the lease has; `launched` adds what is on its way to it; `promised` ids have
been ordered but are still on the device. The rest is owed. There is no prefill phase and no decode
phase: a step runs part of what is owed, and draws an id where the end is reached and a turn wants
one.
"""

from array import array

from continuo.engine.core.cache import Lease
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
    """A session's tokens and its hold on KV."""

    __slots__ = (
        "closing_command",
        "committed_high_water",
        "deferred",
        "deferred_span",
        "id",
        "ids",
        "is_paused",
        "last_feed",
        "last_turn_ended",
        "last_used_s",
        "lease",
        "log",
        "opening_command",
        "promised",
        "publish_to",
        "session_hash",
        "timeout_s",
        "turn",
        "turn_count",
        "worst_residency",
    )

    def __init__(
        self, session_id: str, lease: Lease, log: TokenLog, timeout_s: float | None, now: float
    ) -> None:
        self.id = session_id
        self.session_hash = hash_session_id(session_id)
        """Names it in the flight recorder."""
        self.lease = lease
        self.log = log
        self.ids = log.ids
        """The log's own array."""
        self.timeout_s = timeout_s
        self.promised = 0
        self.last_feed: tuple[int, int] = (-1, -1)
        """(batch number, row) that draws the promised id."""
        self.turn: Turn | None = None
        self.last_turn_ended: TurnEnded | None = None
        """How the last turn has ended, or how far it was when it was paused."""
        self.is_paused = False
        self.turn_count = 0
        """Turns begun; the first one's prompt is what a streaming session publishes."""
        self.publish_to = 0
        """Publish ids[:publish_to] once they are committed; 0: nothing to publish."""
        self.deferred_span: array[int] = array("i")
        """A provisional span that waits for the turn to end."""
        self.committed_high_water = 0
        """How far KV has ever reached into the present ids, here or where the session was before;
        committed less: KV was lost."""
        self.deferred = DeferredCommands()
        """Commands that wait for the turn, or the step in flight, to end."""
        self.closing_command: CloseSession | None = None
        self.opening_command: AttachSession | ForkSession | None = None
        """The command it was opened for, until that has taken effect."""
        self.worst_residency: KVResidency = "none"
        """The longest way its KV had to come since the last turn."""
        self.last_used_s = now

    @property
    def committed(self) -> int:
        return self.lease.committed

    @property
    def launched(self) -> int:
        return self.lease.launched

    @property
    def in_flight(self) -> int:
        """Tokens on their way to KV."""
        return self.lease.reserved

    @property
    def is_busy(self) -> bool:
        """A turn runs, or tokens are in flight: the log and the lease must not be changed."""
        return self.turn is not None or self.lease.reserved > 0

    @property
    def promised_end(self) -> int:
        return len(self.ids) + self.promised

    @property
    def owed(self) -> int:
        lease = self.lease
        return len(self.ids) + self.promised - lease.committed - lease.reserved

    def has_emitted(self, turn: str, prompt: int, ids: "array[int]") -> bool:
        """Whether this turn, running or ended, answers to ids[:prompt] and has said the rest."""
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
        turn = self.turn
        return turn is not None and turn.launched_tokens < turn.max_output_tokens

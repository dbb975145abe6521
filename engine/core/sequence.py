"""Sequence: its ids, how many of them reached KV, what is owed. Turn: one answer in the making.

    committed  ≤  launched  ≤  len(ids) + promised

`committed` is what the lease has; `launched` adds what is on its way to it; `promised` ids have
been ordered but are still on the device. The rest is owed. There is no prefill phase and no decode
phase: a step runs part of what is owed, and draws an id where the end is reached and a turn wants
one.
"""

from array import array

from continuo.engine.core.cache import Lease
from continuo.engine.core.deferred_commands import Waiting
from continuo.engine.core.turn import Turn
from continuo.engine.wire.flight_recorder import mark_of
from continuo.engine.wire.messages import (
    Attach,
    Close,
    Fork,
    Residency,
    TurnEnded,
)
from continuo.engine.wire.token_log import Log


class Sequence:
    """A session's tokens and its hold on KV."""

    __slots__ = (
        "aside",
        "closing",
        "deferred",
        "ended",
        "found",
        "id",
        "ids",
        "last_feed",
        "lease",
        "log",
        "mark",
        "opening",
        "paused",
        "promised",
        "publish_to",
        "reached",
        "timeout_s",
        "touched_s",
        "turn",
        "turns",
    )

    def __init__(
        self, id: str, lease: Lease, log: Log, timeout_s: float | None, now: float
    ) -> None:
        self.id = id
        self.mark = mark_of(id)
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
        self.ended: TurnEnded | None = None
        """How the last turn has ended, or how far it was when it was paused."""
        self.paused = False
        self.turns = 0
        """Turns begun; the first one's prompt is what a streaming session publishes."""
        self.publish_to = 0
        """Publish ids[:publish_to] once they are committed; 0: nothing to publish."""
        self.aside: array[int] = array("i")
        """A provisional span that waits for the turn to end."""
        self.reached = 0
        """How far KV has ever reached into the present ids, here or where the session was before;
        committed less: KV was lost."""
        self.deferred = Waiting()
        """Commands that wait for the turn, or the step in flight, to end."""
        self.closing: Close | None = None
        self.opening: Attach | Fork | None = None
        """The command it was opened for, until that has taken effect."""
        self.found: Residency = "none"
        """The longest way its KV had to come since the last turn."""
        self.touched_s = now

    @property
    def committed(self) -> int:
        return self.lease.committed

    @property
    def launched(self) -> int:
        return self.lease.reach

    @property
    def flying(self) -> int:
        """Tokens on their way to KV."""
        return self.lease.reserved

    @property
    def busy(self) -> bool:
        """A turn runs, or tokens are in flight: the log and the lease must not be changed."""
        return self.turn is not None or self.lease.reserved > 0

    @property
    def end(self) -> int:
        return len(self.ids) + self.promised

    @property
    def owed(self) -> int:
        lease = self.lease
        return len(self.ids) + self.promised - lease.committed - lease.reserved

    def has_said(self, turn: str, prompt: int, ids: "array[int]") -> bool:
        """Whether this turn, running or ended, answers to ids[:prompt] and has said the rest."""
        if self.turn is not None:
            known, began, length = self.turn.id, self.turn.began, len(self.ids)
        elif self.ended is not None:
            known, began = self.ended.turn, self.ended.prompt_tokens
            length = min(self.ended.length, len(self.ids))
        else:
            return False
        same = known == turn and began == prompt and len(ids) <= length
        return same and self.ids[: len(ids)] == ids

    @property
    def wants_to_draw(self) -> bool:
        turn = self.turn
        return turn is not None and turn.ordered < turn.limit

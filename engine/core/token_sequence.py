"""TokenSequence: the ids of a session, its turn and the commands that wait for it."""

import math
from array import array
from typing import TypeVar

from continuo.engine.core.deferred_commands import DeferredCommands
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import AttachSession, CloseSession, ForkSession, TurnEnded
from continuo.engine.wire.token_log import TokenLog


class TokenSequence:
    """A session as its commands know it. A backend adds how far it has computed the ids."""

    __slots__ = (
        "closing_command",
        "computed_ahead",
        "computed_from",
        "deferred",
        "deferred_span",
        "group",
        "id",
        "ids",
        "last_turn_ended",
        "last_used_s",
        "log",
        "opening_command",
        "paused_turn",
        "timeout_s",
        "turn",
        "turn_count",
        "weight",
    )

    def __init__(self, session_id: str, log: TokenLog, timeout_s: float | None, now: float) -> None:
        self.id = session_id
        self.log = log
        self.ids = log.ids
        """`log.ids` itself, not a copy."""
        self.timeout_s = timeout_s
        self.group = ""
        """Group that shares rows, pages and prefill fairly with the other groups."""
        self.weight = 1.0
        """Share of the group, relative to those of other groups."""
        self.turn: Turn | None = None
        self.last_turn_ended: TurnEnded | None = None
        """TurnEnded of the last turn; for a paused turn, its state when it was paused."""
        self.paused_turn: Turn | None = None
        self.turn_count = 0
        """Number of turns begun."""
        self.deferred_span: array[int] = array("i")
        """Provisional span kept out of the log while a turn runs, and put back when the turn
        ends."""
        self.deferred = DeferredCommands()
        """Commands that wait until neither a turn nor a step is in flight."""
        self.computed_ahead = 0
        """Tokens computed since a turn was last reported as ended, before the next one began: those
        of words that were replaced too."""
        self.computed_from: float = math.inf
        """The first position of these tokens."""
        self.closing_command: CloseSession | None = None
        self.opening_command: AttachSession | ForkSession | None = None
        """The command that opened the session; None once it has taken effect."""
        self.last_used_s = now

    @property
    def is_paused(self) -> bool:
        return self.paused_turn is not None

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or ids are being computed; then commands must not change the log."""
        return self.turn is not None

    def count_ahead(self, start: int, count: int) -> None:
        """Record that `count` tokens from position `start` on were computed, and not for a turn
        that was reported."""
        self.computed_ahead += count
        self.computed_from = min(self.computed_from, start)

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


SequenceT = TypeVar("SequenceT", bound=TokenSequence)

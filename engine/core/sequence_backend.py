"""SequenceBackend: where the ids of sessions are computed and their turns drawn.

The log is the source of truth, and a backend follows it: Sessions and Transitions change log and
turn of a sequence, then call the backend. The part that receives the drawn ids, here EngineLoop,
calls `Transitions.apply_ids` and, once a sequence is no longer busy, `Sessions.advance_if_idle`.
"""

from collections.abc import Collection
from typing import Protocol

from continuo.engine.core.token_sequence import SequenceT
from continuo.engine.core.turn import Turn
from continuo.engine.wire.messages import EngineLoad, EngineStats, SessionInfo
from continuo.engine.wire.token_log import TokenLog


class SequenceBackend(Protocol[SequenceT]):
    """The calls of Sessions and Transitions to a backend. Unless stated otherwise, the sequence is
    not busy."""

    def open(
        self, session: str, scope: str, log: TokenLog, timeout_s: float | None, now: float
    ) -> SequenceT:
        """Make a sequence of an empty log. What is computed is shared within its scope alone."""
        ...

    def fork(self, parent: SequenceT, session: str, log: TokenLog, now: float) -> SequenceT:
        """Make a sequence of `log`, a fork of the parent's, that shares what was computed for it.
        The parent may be busy."""
        ...

    def close(self, sequence: SequenceT, shared_tokens: int) -> None:
        """Release a sequence; its first `shared_tokens` ids may remain cached."""
        ...

    def extend(self, sequence: SequenceT, kept: int, *, is_moved: bool = False) -> None:
        """Follow a log that kept its first `kept` ids and got others. `is_moved`: another engine
        had computed them."""
        ...

    def rewind(self, sequence: SequenceT, kept: int) -> None:
        """Follow a log that was cut to its first `kept` ids and the provisional span. Ids may be in
        flight."""
        ...

    def compute_ahead(self, sequence: SequenceT) -> None:
        """Compute the ids of a sequence before its next turn, if that is worth it."""
        ...

    def stop_computing(self, sequence: SequenceT) -> None:
        """Compute no more ids of a sequence; those in flight are discarded."""
        ...

    def isolate(self, sequence: SequenceT, extra_tokens: int) -> None:
        """Compute a sequence apart from others up to `extra_tokens` beyond its log, because it may
        have crashed an engine."""
        ...

    def find_cached(self, sequence: SequenceT) -> None:
        """Look up the ids of a sequence among those that other sequences have computed."""
        ...

    def begin_turn(self, sequence: SequenceT, turn: Turn) -> None:
        """Draw the output of `turn`, which `sequence.turn` is from now on."""
        ...

    def end_turn(self, sequence: SequenceT, turn: Turn, now: float, *, is_paused: bool) -> float:
        """Draw no more output of `turn`, which `sequence.turn` was. Returns the seconds that the
        device has computed since the request."""
        ...

    def settle(self, sequence: SequenceT) -> None:
        """Release what was computed beyond the log, after the last id in flight."""
        ...

    def mark_idle(self, sequence: SequenceT) -> None:
        """Allow that what was computed for a sequence is evicted."""
        ...

    def info(self, sequence: SequenceT, now: float) -> SessionInfo: ...

    def load(self, sessions: int, now: float, *, draining: bool) -> EngineLoad: ...

    def stats(self, sequences: Collection[SequenceT]) -> EngineStats: ...

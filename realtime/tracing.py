"""Traces of turns. A recorder, set by the server, exports them; without one, nothing is kept."""

from collections.abc import Callable
from typing import Protocol

import msgspec


class TurnTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has ended: its times in nanoseconds since 1970, and what it computed. No text."""

    response_id: str
    session_id: str
    """Empty for a turn without a session."""
    began_ns: int
    first_output_ns: int
    """Time of the first output; 0 if there was none."""
    ended_ns: int
    queued_s: float = 0.0
    prefill_s: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    temperature: float = 0.0
    finish_reason: str = ""
    error_code: str = ""
    """Code of the error with which the response failed; empty if it has not failed."""
    tool_calls: int = 0
    """Number of tools that the response calls."""
    is_traced_by_engine: bool = False
    """Whether the engine exports spans of queue, prefill and decode."""


class TurnSpan(Protocol):
    """The span of a turn that has begun."""

    @property
    def traceparent(self) -> str:
        """W3C trace context of the span, for the engine."""
        ...

    def end(self, turn: TurnTrace) -> None: ...


TurnRecorder = Callable[[str, int], TurnSpan]
"""Function that begins the span of a turn, given its parent, as a W3C trace context or nothing, and
its time in nanoseconds since 1970."""
_recorder: list[TurnRecorder] = []


def set_recorder(recorder: TurnRecorder | None) -> None:
    """Set the recorder of this process. None: turns are not recorded."""
    _recorder[:] = [] if recorder is None else [recorder]


def begin_turn(traceparent: str, began_ns: int) -> TurnSpan | None:
    """Begin the span of a turn. Returns None without a recorder."""
    return _recorder[0](traceparent, began_ns) if _recorder else None

"""Engine: the async face of the loop, for one gateway. Turns ids into text; knows no torch."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from engine.config import EngineConfig
from engine.messages import EngineStats, Ready, Sampling, SessionInfo, TokenLogprobs, TurnEnded
from engine.text import Text


class Piece(msgspec.Struct, frozen=True):
    """A stretch of a turn's output. `text` may be empty (half a character, a possible stop string)
    and never takes anything back; a matched stop string and stop ids are not part of it."""

    first: int
    ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


class Turn:
    """One turn in flight: iterate over its pieces; `ended` is set when the iteration stops.

    The iteration raises EngineLost if the engine goes away under it.
    """

    id: str
    session: str
    ended: TurnEnded | None

    def __aiter__(self) -> AsyncIterator[Piece]: ...


class Engine:
    """Sessions are named by the caller (or get a fresh id). Every method raises from engine.errors.

    All positions count tokens of the session's log.
    """

    ready: Ready
    text: Text

    @classmethod
    async def start(cls, config: EngineConfig) -> "Engine":
        """Starts the engine process, waits until the model is loaded. Raises ModelError."""
        ...

    async def stop(self) -> None: ...

    async def open(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity_tokens: int | None = None,
        cache_scope: str = "",
    ) -> str: ...

    async def append(self, session: str, ids: Sequence[int]) -> int:
        """Adds to the log, prefills when there is time. Returns the new length. While a turn runs
        it waits for the turn's end."""
        ...

    async def generate(self, session: str, sampling: Sampling, turn: str | None = None) -> Turn:
        """Starts a turn on all that was appended; returns once it is accepted. The drawn ids,
        including a final stop id, become part of the log."""
        ...

    async def cancel(self, session: str, turn: str | None = None, *, drop: bool = False) -> None:
        """Stops the turn within a step; what it said stays in the log unless `drop`. Harmless if
        the turn has ended."""
        ...

    async def rewind(self, session: str, to: int) -> int: ...

    async def fork(
        self, session: str, at: int | None = None, *, child: str | None = None
    ) -> str: ...

    async def close(self, session: str, *, keep_prefix: bool = True) -> None: ...

    async def info(self, session: str) -> SessionInfo: ...

    async def list(self) -> list[SessionInfo]: ...

    async def stats(self) -> EngineStats: ...

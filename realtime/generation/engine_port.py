"""The part of the engine client that sessions and responses use."""

from collections.abc import Sequence
from typing import Literal, Protocol

from continuo.engine import (
    DEFAULT_GROUP,
    EngineReady,
    ModelText,
    Sampling,
    SessionGroup,
    SessionInfo,
    TurnStream,
    UnfinishedTurn,
)

AppendMode = Literal["firm", "provisional", "commit"]


class FleetPort(Protocol):
    """The methods of `EngineFleet` that sessions and responses call; documented there."""

    @property
    def is_available_soon(self) -> bool: ...
    async def inspect(self, session: str) -> SessionInfo | None: ...


class EnginePort(Protocol):
    """The methods of `EngineClient` that sessions and responses call; documented there."""

    ready: EngineReady
    text: ModelText

    @property
    def fleet(self) -> FleetPort: ...
    async def open(
        self,
        session_id: str | None = None,
        *,
        group: SessionGroup = DEFAULT_GROUP,
        fence: int = 0,
        waits: bool = True,
    ) -> str: ...
    async def attach(
        self,
        session: str,
        ids: Sequence[int],
        *,
        provisional: Sequence[int] = (),
        unfinished: UnfinishedTurn | TurnStream | None = None,
        group: SessionGroup = DEFAULT_GROUP,
        fence: int = 0,
        waits: bool = True,
    ) -> TurnStream | None: ...
    def set_fence(self, session: str, fence: int) -> None: ...
    async def pause(self, session: str) -> None: ...
    async def resume(self, session: str) -> None: ...
    async def append(self, session: str, ids: Sequence[int], span: AppendMode = "firm") -> int: ...
    async def generate(
        self, session: str, sampling: Sampling, turn: str | None = None, *, traceparent: str = ""
    ) -> TurnStream: ...
    async def cancel(
        self, session: str, turn: str | None = None, *, discard_output: bool = False
    ) -> int: ...
    async def rewind(self, session: str, to: int) -> int: ...
    async def fork(
        self, session: str, at: int | None = None, *, child: str | None = None, fence: int = 0
    ) -> str: ...
    async def info(self, session: str) -> SessionInfo: ...
    async def close(self, session: str) -> None: ...

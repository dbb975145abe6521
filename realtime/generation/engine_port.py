"""The calls of the engine client that a generation needs."""

from collections.abc import Sequence
from typing import Literal, Protocol

from continuo.engine import Ready, Sampling, SessionInfo, Text, Turn, Unfinished

AppendAs = Literal["firm", "provisional", "commit"]


class Door(Protocol):
    """Of engine.Engine, what a session needs."""

    ready: Ready
    text: Text

    @property
    def expected(self) -> bool: ...
    async def open(
        self,
        session_id: str | None = None,
        *,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity_tokens: int | None = None,
        cache_scope: str = "",
        fence: int = 0,
    ) -> str: ...
    async def attach(
        self,
        session: str,
        ids: Sequence[int],
        *,
        unfinished: Unfinished | None = None,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity_tokens: int | None = None,
        cache_scope: str = "",
        fence: int = 0,
    ) -> Turn | None: ...
    def fence(self, session: str, fence: int) -> None: ...
    async def pause(self, session: str) -> None: ...
    async def resume(self, session: str) -> None: ...
    async def append(self, session: str, ids: Sequence[int], span: AppendAs = "firm") -> int: ...
    async def generate(self, session: str, sampling: Sampling, turn: str | None = None) -> Turn: ...
    async def cancel(self, session: str, turn: str | None = None, *, drop: bool = False) -> int: ...
    async def rewind(self, session: str, to: int) -> int: ...
    async def fork(
        self, session: str, at: int | None = None, *, child: str | None = None, fence: int = 0
    ) -> str: ...
    async def info(self, session: str) -> SessionInfo: ...
    async def look(self, session: str) -> SessionInfo | None: ...
    async def close(self, session: str, *, keep_prefix: bool = True) -> None: ...

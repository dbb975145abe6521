"""Strand: one engine session, and what we know of its log. Brings it up to a conversation with the
fewest tokens: rewinds to the first that differs, appends what follows."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence

import msgspec

from continuo.engine import Sampling, TurnStream, UnfinishedTurn, UnknownEngineSession
from continuo.realtime.conversation.tokenization import Span, common_prefix_length
from continuo.realtime.generation.engine_port import EnginePort


class SyncResult(msgspec.Struct, frozen=True):
    rewound_tokens: int
    appended_tokens: int


class EngineSession:
    """`spans` are in the engine's log whole, `tail` stands behind them, and behind that `draft`,
    which is provisional. One call at a time."""

    def __init__(
        self,
        engine: EnginePort,
        session_id: str,
        *,
        cache_scope: str = "",
        parent: "EngineSession | None" = None,
        fence: int = 0,
        may_exist: bool = False,
    ) -> None:
        """`parent`: begins as a fork of it, sharing its KV, as far as they say the same. `left`: it
        was begun elsewhere, and an engine may still have it. `fence`: the right to it."""
        self._engine = engine
        self._base_id = session_id
        self._reopen_count = 0
        self._cache_scope = cache_scope
        self._fence = fence
        self._may_exist = may_exist
        self._spans: tuple[Span, ...] | None = None
        self._tail: list[int] = []
        self._draft: list[int] = []
        self._parent = parent
        self._stale_ids: list[str] = []
        """Sessions under earlier names that the engine may still have."""
        self._turn: TurnStream | None = None
        """It adds to the log, and what it has added is not known here yet."""
        self._lock = asyncio.Lock()

    def invalidate(self) -> None:
        """The engine was lost, or did not answer: what its log holds is not known any more."""
        self._stale_ids.append(self.session_id)
        self._spans, self._tail, self._draft, self._turn = None, [], [], None
        self._reopen_count += 1

    @property
    def session_id(self) -> str:
        """The engine's name for it; a new one each time the engine was lost."""
        return f"{self._base_id}.{self._reopen_count}" if self._reopen_count else self._base_id

    @property
    def length(self) -> int:
        return sum(len(span.ids) for span in self._spans or ()) + len(self._tail)

    async def sync(
        self,
        spans: Sequence[Span],
        tail: Sequence[int] = (),
        *,
        draft: Sequence[int] | None = None,
    ) -> SyncResult:
        """The engine's log becomes the ids of `spans` and `tail`, and behind them `draft` (None: as
        it is). Raises EngineError."""
        async with self._exclusive():
            try:
                return await self._sync(tuple(spans), list(tail), draft)
            except UnknownEngineSession:
                # The engine has let go of it (restart, time-out): what was said is here.
                self._spans = None
                return await self._sync(tuple(spans), list(tail), draft)

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncGenerator[None]:
        """One call at a time. Of one that was cancelled the engine may still do the rest."""
        async with self._lock:
            try:
                yield
            except asyncio.CancelledError:
                self.invalidate()
                raise

    def fork(self, session_id: str) -> "EngineSession":
        """Another one that begins with what both have in common."""
        return EngineSession(
            self._engine, session_id, cache_scope=self._cache_scope, parent=self, fence=self._fence
        )

    def set_fence(self, fence: int) -> None:
        """The right to it may be a new one."""
        if fence != self._fence:
            self._fence = fence
            self._engine.set_fence(self.session_id, fence)

    async def resume_turn(
        self,
        spans: Sequence[Span],
        header: Sequence[int],
        sampled_ids: Sequence[int],
        sampling: Sampling,
        turn_id: str,
    ) -> TurnStream:
        """A turn that was begun elsewhere goes on behind `spans`, `header` and the ids it has said;
        it says these first. Raises EngineError."""
        async with self._lock:
            self._may_exist, self._parent = False, None
            unfinished = UnfinishedTurn(turn_id, sampling, len(sampled_ids))
            made = await self._attach(spans, [*header, *sampled_ids], unfinished)
            assert made is not None, "it is unfinished"
            self._spans, self._tail, self._draft = tuple(spans), list(header), []
            self._turn = made
            return made

    async def _attach(
        self, spans: Sequence[Span], tail: Sequence[int], unfinished: UnfinishedTurn | None = None
    ) -> TurnStream | None:
        return await self._engine.attach(
            self.session_id,
            [*(id for span in spans for id in span.ids), *tail],
            unfinished=unfinished,
            cache_scope=self._cache_scope,
            fence=self._fence,
        )

    async def start_turn(
        self, spans: Sequence[Span], header: Sequence[int], sampling: Sampling, turn_id: str
    ) -> TurnStream:
        """The engine's log becomes the ids of `spans` and `header`, and a turn starts there. Both
        are said to the engine at once, so that nothing of the prompt is prefilled in between: the
        turn finds in KV what was there before. Raises EngineError."""
        async with self._exclusive():
            try:
                return await self._start_turn(tuple(spans), list(header), sampling, turn_id)
            except UnknownEngineSession:
                self._spans = None
                return await self._start_turn(tuple(spans), list(header), sampling, turn_id)

    def commit_turn(self, turn: TurnStream, sampled_ids: Sequence[int]) -> None:
        """The turn has ended; it has put these into the log. Means nothing where the log it ran on
        was forgotten meanwhile."""
        if turn is not self._turn:
            return
        self._turn = None
        self._tail.extend(sampled_ids)
        ended = turn.ended
        assert ended is not None, "a turn that has drawn all its ids has ended"
        assert self.length == ended.length, "the engine's log is what we think it is"

    async def cancel_turn(self, turn: TurnStream, *, discard_output: bool = False) -> None:
        """`drop`: what it said is forgotten."""
        await self._engine.cancel(turn.session, turn.id, discard_output=discard_output)

    def _invalidate_uncommitted(self) -> None:
        """A turn whose end nobody has waited for may have added anything."""
        if self._turn is not None:
            self.invalidate()

    async def close(self) -> None:
        async with self._lock:
            await self._close_stale()
            if self._spans is not None:
                self._spans = None
                await self._engine.close(self.session_id)

    async def _close_stale(self) -> None:
        while self._stale_ids:
            with contextlib.suppress(UnknownEngineSession):
                await self._engine.close(self._stale_ids[-1])
            self._stale_ids.pop()

    async def _sync(
        self, wanted: tuple[Span, ...], tail: list[int], draft: Sequence[int] | None
    ) -> SyncResult:
        self._invalidate_uncommitted()
        if self._spans is None:
            self._spans, self._tail = await self._open(wanted, tail)
            self._draft = []
        same, old, new, keep = self._compare(self._spans, wanted, tail)
        base = self.length - len(old)
        if keep < len(old):
            await self._engine.rewind(self.session_id, base + keep)
            self._spans, self._tail = wanted[:same], old[:keep]
        if keep < len(new):
            await self._append(new[keep:], final=draft is not None and not draft)
        self._spans, self._tail = wanted, tail
        if draft is not None and self._draft != list(draft):
            await self._engine.append(self.session_id, draft, "provisional")
            self._draft = list(draft)
        return SyncResult(rewound_tokens=len(old) - keep, appended_tokens=len(new) - keep)

    async def _start_turn(
        self, wanted: tuple[Span, ...], header: list[int], sampling: Sampling, turn_id: str
    ) -> TurnStream:
        self._invalidate_uncommitted()
        if self._spans is None:
            self._spans, self._tail = await self._open(wanted, header)
            self._draft = []
        _, old, new, keep = self._compare(self._spans, wanted, header)
        base = self.length - len(old)
        changes: list[Awaitable[object]] = []
        if keep < len(old):
            changes.append(self._engine.rewind(self.session_id, base + keep))
        if keep < len(new):
            changes.append(self._engine.append(self.session_id, new[keep:]))
        starting = self._engine.generate(self.session_id, sampling, turn_id)
        *results, started = await asyncio.gather(*changes, starting, return_exceptions=True)
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        if failed is None and isinstance(started, TurnStream):
            self._spans, self._tail, self._turn = wanted, header, started
            return started
        if isinstance(started, TurnStream):
            await self.cancel_turn(started, discard_output=True)
            self.invalidate()
        raise failed or started  # type: ignore[misc]  # without `failed` it is an exception

    def _compare(
        self, spans: tuple[Span, ...], wanted: Sequence[Span], tail: Sequence[int]
    ) -> tuple[int, list[int], list[int], int]:
        """Spans that are the same; the ids behind them as they are and as they should be; how many
        of these are the same."""
        same = common_prefix_length(spans, wanted)
        old = [id for span in spans[same:] for id in span.ids] + self._tail
        new = [id for span in wanted[same:] for id in span.ids] + list(tail)
        return same, old, new, common_prefix_length(old, new)

    async def _open(
        self, wanted: Sequence[Span], tail: Sequence[int]
    ) -> tuple[tuple[Span, ...], list[int]]:
        await self._close_stale()
        parent, self._parent = self._parent, None
        if parent is not None:
            lent = await parent.fork_into(self.session_id, wanted, tail, self._fence)
            if lent is not None:
                return lent
        if self._may_exist:
            self._may_exist = False
            await self._attach(wanted, tail)
            return tuple(wanted), list(tail)
        await self._engine.open(self.session_id, cache_scope=self._cache_scope, fence=self._fence)
        return (), []

    async def fork_into(
        self, child: str, wanted: Sequence[Span], tail: Sequence[int], fence: int
    ) -> tuple[tuple[Span, ...], list[int]] | None:
        """Forks as much of the log as the child wants, whose fence this is; gives its spans and
        what is behind them. None: nothing. A turn that runs goes on meanwhile."""
        async with self._lock:
            spans = self._spans
            if spans is None:
                return None
            same, old, _, keep = self._compare(spans, wanted, tail)
            at = self.length - len(old) + keep
            if at == 0:
                return None
            try:
                await self._engine.fork(self.session_id, at, child=child, fence=fence)
            except UnknownEngineSession:
                return None
            return spans[:same], old[:keep]

    async def _append(self, ids: list[int], *, final: bool) -> None:
        """`final`: what was a draft may have become this; what both begin with keeps its KV."""
        if final and self._draft:
            await self._engine.append(self.session_id, ids, "commit")
            self._draft = []
        else:
            await self._engine.append(self.session_id, ids)

"""EngineSession: one session in the engine, and the gateway's copy of its token log.

Makes the log equal to the ids of a conversation with as little prefill as possible: rewinds to the
first id that differs, then appends the new ids."""

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
    """Client of one session in the engine. Its calls run one at a time.

    The token log of the session, as far as known, consists of the token ids of `_spans`, then
    `_tail` (token ids after the last span, such as a header), then `_draft`, which is provisional.
    `_spans` is None while the session is not open or its log is unknown."""

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
        """`parent`: the engine session of which this one is opened as a fork, to share the KV of
        the leading ids that both have in common. `fence`: fence of the session lease. `may_exist`:
        the session was opened elsewhere, and an engine may still hold it."""
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
        """Earlier values of `session_id`, replaced by `invalidate`. The engine may still hold
        sessions with these ids."""
        self._turn: TurnStream | None = None
        """The turn that is appending to the log; its ids are not in `_tail` yet."""
        self._lock = asyncio.Lock()

    def invalidate(self) -> None:
        """Treat the engine's log as unknown, after the engine was lost or did not respond. The next
        call opens the session again, under a new id."""
        self._stale_ids.append(self.session_id)
        self._spans, self._tail, self._draft, self._turn = None, [], [], None
        self._reopen_count += 1

    @property
    def session_id(self) -> str:
        """Id of the session in the engine; a new one after each `invalidate`."""
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
        """Make the engine's log the ids of `spans` and `tail`, then `draft`. `draft` None keeps the
        current draft. Raises EngineError."""
        async with self._exclusive():
            try:
                return await self._sync(tuple(spans), list(tail), draft)
            except UnknownEngineSession:
                # The engine has closed the session (restart, timeout): open it again.
                self._spans = None
                return await self._sync(tuple(spans), list(tail), draft)

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncGenerator[None]:
        """Hold the lock for one call. If the call is cancelled, invalidates the log, because the
        call may still take effect in the engine."""
        async with self._lock:
            try:
                yield
            except asyncio.CancelledError:
                self.invalidate()
                raise

    def fork(self, session_id: str) -> "EngineSession":
        """Create a session that will be opened as a fork of this one, to share the KV of the
        leading token ids that both have in common."""
        return EngineSession(
            self._engine, session_id, cache_scope=self._cache_scope, parent=self, fence=self._fence
        )

    def set_fence(self, fence: int) -> None:
        """Set the fence that later commands carry. Each claim of the session grants a new one."""
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
        """Resume a turn that was started elsewhere, after `spans`, `header` and the ids it has
        sampled. The stream begins with those ids. Raises EngineError."""
        async with self._lock:
            self._may_exist, self._parent = False, None
            unfinished = UnfinishedTurn(turn_id, sampling, len(sampled_ids))
            turn = await self._attach(spans, [*header, *sampled_ids], unfinished)
            assert turn is not None, "an unfinished turn has a stream"
            self._spans, self._tail, self._draft = tuple(spans), list(header), []
            self._turn = turn
            return turn

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
        """Make the engine's log the ids of `spans` and `header`, and start a turn there. All
        commands are sent together, so that the turn begins before any of the new ids is prefilled;
        its `cached_tokens` then counts only KV from before these commands. Raises EngineError."""
        async with self._exclusive():
            try:
                return await self._start_turn(tuple(spans), list(header), sampling, turn_id)
            except UnknownEngineSession:
                self._spans = None
                return await self._start_turn(tuple(spans), list(header), sampling, turn_id)

    def commit_turn(self, turn: TurnStream, sampled_ids: Sequence[int]) -> None:
        """Append the ids that an ended turn has sampled to the gateway's copy of the log. Does
        nothing if the copy was invalidated while the turn ran."""
        if turn is not self._turn:
            return
        self._turn = None
        self._tail.extend(sampled_ids)
        ended = turn.ended
        assert ended is not None, "a committed turn has ended"
        assert self.length == ended.length, "the known log is as long as the engine's"

    async def cancel_turn(self, turn: TurnStream, *, discard_output: bool = False) -> None:
        """Cancel a turn. `discard_output`: also remove its sampled ids from the log."""
        await self._engine.cancel(turn.session, turn.id, discard_output=discard_output)

    def _invalidate_uncommitted(self) -> None:
        """Invalidate the log if the last turn was never committed: the token ids that it appended
        are unknown."""
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
        self, desired: tuple[Span, ...], tail: list[int], draft: Sequence[int] | None
    ) -> SyncResult:
        self._invalidate_uncommitted()
        if self._spans is None:
            self._spans, self._tail = await self._open(desired, tail)
            self._draft = []
        same, old, new, keep = self._compare(self._spans, desired, tail)
        base = self.length - len(old)
        if keep < len(old):
            await self._engine.rewind(self.session_id, base + keep)
            self._spans, self._tail = desired[:same], old[:keep]
        if keep < len(new):
            await self._append(new[keep:], final=draft is not None and not draft)
        self._spans, self._tail = desired, tail
        if draft is not None and self._draft != list(draft):
            await self._engine.append(self.session_id, draft, "provisional")
            self._draft = list(draft)
        return SyncResult(rewound_tokens=len(old) - keep, appended_tokens=len(new) - keep)

    async def _start_turn(
        self, desired: tuple[Span, ...], header: list[int], sampling: Sampling, turn_id: str
    ) -> TurnStream:
        self._invalidate_uncommitted()
        if self._spans is None:
            self._spans, self._tail = await self._open(desired, header)
            self._draft = []
        _, old, new, keep = self._compare(self._spans, desired, header)
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
            self._spans, self._tail, self._turn = desired, header, started
            return started
        if isinstance(started, TurnStream):
            await self.cancel_turn(started, discard_output=True)
            self.invalidate()
        raise failed or started  # type: ignore[misc]  # without `failed` it is an exception

    def _compare(
        self, spans: tuple[Span, ...], desired: Sequence[Span], tail: Sequence[int]
    ) -> tuple[int, list[int], list[int], int]:
        """Compare the log, `spans` and then `_tail`, with the desired log, `desired` and then
        `tail`. Returns four values: the number of leading spans that are equal; the ids after these
        spans in the log; the ids after these spans in the desired log; and how many leading ids of
        the two lists are equal."""
        same = common_prefix_length(spans, desired)
        old = [id for span in spans[same:] for id in span.ids] + self._tail
        new = [id for span in desired[same:] for id in span.ids] + list(tail)
        return same, old, new, common_prefix_length(old, new)

    async def _open(
        self, desired: Sequence[Span], tail: Sequence[int]
    ) -> tuple[tuple[Span, ...], list[int]]:
        await self._close_stale()
        parent, self._parent = self._parent, None
        if parent is not None:
            forked = await parent.fork_into(self.session_id, desired, tail, self._fence)
            if forked is not None:
                return forked
        if self._may_exist:
            self._may_exist = False
            await self._attach(desired, tail)
            return tuple(desired), list(tail)
        await self._engine.open(self.session_id, cache_scope=self._cache_scope, fence=self._fence)
        return (), []

    async def fork_into(
        self, child: str, desired: Sequence[Span], tail: Sequence[int], fence: int
    ) -> tuple[tuple[Span, ...], list[int]] | None:
        """Open the session `child` in the engine as a fork of this one. The child's log begins as
        the leading ids that the log of this session has in common with the log that the child is to
        have: the ids of the spans `desired`, followed by the ids `tail`. `fence`: fence of the
        child. A running turn of this session continues.

        Returns the log of the child: its complete spans, and the ids after them. Returns None, and
        opens no session, if this session is not open in the engine or no leading id is in
        common."""
        async with self._lock:
            spans = self._spans
            if spans is None:
                return None
            same, old, _, keep = self._compare(spans, desired, tail)
            at = self.length - len(old) + keep
            if at == 0:
                return None
            try:
                await self._engine.fork(self.session_id, at, child=child, fence=fence)
            except UnknownEngineSession:
                return None
            return spans[:same], old[:keep]

    async def _append(self, ids: list[int], *, final: bool) -> None:
        """Append token ids to the log. If `final`, they replace the draft, and leading ids that
        equal those of the draft keep their KV. Otherwise they are inserted before the draft."""
        if final and self._draft:
            await self._engine.append(self.session_id, ids, "commit")
            self._draft = []
        else:
            await self._engine.append(self.session_id, ids)

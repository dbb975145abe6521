"""EngineSession: one session in the engine, and the gateway's copy of its token log.

Makes the log equal to the ids of a conversation with as little prefill as possible: rewinds to the
first id that differs, then appends the new ids. This copy is also what a session is recovered from:
if the log of the engine is unknown, because a link, an engine, a call or another gateway was lost,
the session is attached with the whole log."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence

from continuo.engine import (
    DEFAULT_GROUP,
    EngineClient,
    Sampling,
    SessionDetached,
    SessionGroup,
    TurnStream,
    UnfinishedTurn,
    UnknownEngineSession,
)
from continuo.realtime.conversation.tokenization import Span, common_prefix_length, count_ids


class EngineSession:
    """Client of one session in the engine. Its calls run one at a time.

    The token log of the session, as far as known, consists of the token ids of `_spans`, then
    `_tail` (token ids after the last span, such as a header), then `_draft`, which is provisional.
    `_spans` is None while the session is not open or its log is unknown."""

    def __init__(
        self,
        engine: EngineClient,
        session_id: str,
        *,
        group: SessionGroup = DEFAULT_GROUP,
        parent: "EngineSession | None" = None,
        fence: int = 0,
        may_exist: bool = False,
    ) -> None:
        """Args:
        engine: all engines of the gateway, one of which has the session or gets it.
        session_id: id in the engine: that of the session, or one that begins with it or with a
            response's id.
        group: group of the tenant, within which KV is shared.
        parent: the engine session of which this one is opened as a fork, to share the KV of the
            leading ids that both have in common. None: it is opened empty.
        fence: fence of the session lease; 0: the session has none.
        may_exist: the session was opened elsewhere, and an engine may still hold it.
        """
        self._engine = engine
        self.session_id = session_id
        self._group = group
        self._fence = fence
        self._may_exist = may_exist
        self._spans: tuple[Span, ...] | None = None
        self._tail: list[int] = []
        self._draft: list[int] = []
        self._parent = parent
        self.pushed_tokens = 0
        """Tokens sent to be computed since the last turn began: no turn has reported them yet."""
        self._turn: TurnStream | None = None
        """The turn that is appending to the log; its ids are not in `_tail` yet."""
        self._lock = asyncio.Lock()

    def _invalidate(self) -> None:
        """Treat the engine's log as unknown. The next call attaches the session."""
        self._spans, self._tail, self._draft, self._turn = None, [], [], None

    @property
    def length(self) -> int:
        return count_ids(self._spans or ()) + len(self._tail)

    async def sync(self, spans: Sequence[Span], *, draft: Sequence[int] | None = None) -> None:
        """Make the engine's log the ids of `spans`, then `draft`. `draft` None keeps the current
        draft. Does nothing while a turn runs. Raises EngineError; SessionDetached if the engine is
        away, for which this does not wait."""
        desired = tuple(spans)
        if self._turn is not None and not self._turn.has_ended:
            return
        async with self._exclusive():
            await self._open_new(desired, (), waits=False)
            if self._spans is not None:
                try:
                    await self._change_log(self._spans, desired, draft)
                except (SessionDetached, UnknownEngineSession):
                    # Send the whole log again below, in place of the commands that are missing:
                    # after a lost reply it is unknown which of them the engine has executed.
                    self._invalidate()
            if self._spans is None:
                await self._attach(desired, (), draft or (), waits=False)
                self._spans, self._tail, self._draft = desired, [], list(draft or ())

    async def start_turn(
        self,
        spans: Sequence[Span],
        header: Sequence[int],
        sampling: Sampling,
        turn_id: str,
        sampled_ids: Sequence[int] | None = None,
        traceparent: str = "",
    ) -> TurnStream:
        """Make the engine's log the ids of `spans` and `header`, and start a turn there. Waits for
        an engine. All commands are sent together, so that the turn begins before any of the new ids
        is prefilled; its `cached_tokens` then counts only KV from before these commands.

        `sampled_ids`: the turn was started elsewhere, and is resumed after these ids, with which
        the stream begins. `traceparent`: trace context of the turn's span. Raises EngineError."""
        desired, tail = tuple(spans), list(header)
        async with self._exclusive():
            if sampled_ids is None:
                await self._open_new(desired, tail, waits=True)
                if self._spans is not None:
                    try:
                        return await self._start_turn(
                            self._spans, desired, tail, sampling, turn_id, traceparent
                        )
                    except (SessionDetached, UnknownEngineSession):
                        self._invalidate()
            self._may_exist, self._parent, self.pushed_tokens = True, None, 0
            emitted = sampled_ids or ()
            unfinished = UnfinishedTurn(turn_id, sampling, len(emitted), traceparent)
            turn = await self._attach(desired, [*tail, *emitted], (), unfinished)
            assert turn is not None, "an unfinished turn has a stream"
            self._spans, self._tail, self._draft, self._turn = desired, tail, [], turn
            return turn

    async def reattach_turn(self, turn: TurnStream) -> None:
        """Attach the session again after SessionDetached was raised by the stream of its turn,
        which then continues. Does nothing if another turn has replaced it, because the stream then
        ends. Waits for an engine. Raises EngineError."""
        if turn is not self._turn or self._spans is None:
            return
        try:
            # Without the lock, so that a fork does not wait for an engine.
            await self._attach(self._spans, self._tail, self._draft, turn)
        except BaseException:
            self._invalidate()
            raise

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
        """Cancel a turn. `discard_output`: also remove its sampled ids from the log. No effect
        while the turn is detached: then it must be cancelled after it was attached. Raises
        EngineError."""
        with contextlib.suppress(SessionDetached):
            await self._engine.cancel(turn.session, turn.id, discard_output=discard_output)

    def fork(self, session_id: str) -> "EngineSession":
        """Create a session that will be opened as a fork of this one, to share the KV of the
        leading token ids that both have in common."""
        return EngineSession(
            self._engine, session_id, group=self._group, parent=self, fence=self._fence
        )

    def set_fence(self, fence: int) -> None:
        """Set the fence that later commands carry. Each claim of the session grants a new one."""
        if fence != self._fence:
            self._fence = fence
            self._engine.set_fence(self.session_id, fence)

    async def close(self) -> None:
        async with self._lock:
            if self._may_exist:
                self._may_exist = False
                self._invalidate()
                await self._engine.close(self.session_id, fence=self._fence)

    # ------------------------------------------------------------ inside

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncGenerator[None]:
        """Hold the lock for one call. Invalidates the log if the ids of the last turn were never
        committed, or if the call fails or is cancelled, because it may have taken effect."""
        async with self._lock:
            if self._turn is not None:
                self._invalidate()
            try:
                yield
            except BaseException:
                self._invalidate()
                raise

    async def _change_log(
        self, spans: tuple[Span, ...], desired: tuple[Span, ...], draft: Sequence[int] | None
    ) -> None:
        _, old, new, keep = self._compare(spans, desired, ())
        if keep < len(old):
            await self._engine.rewind(self.session_id, self.length - len(old) + keep)
        if keep < len(new):
            await self._append(new[keep:], final=draft is not None and not draft)
            self.pushed_tokens += len(new) - keep
        self._spans, self._tail = desired, []
        if draft is not None and self._draft != list(draft):
            await self._engine.append(self.session_id, draft, "provisional")
            self.pushed_tokens += len(draft) - common_prefix_length(self._draft, draft)
            self._draft = list(draft)

    async def _append(self, ids: list[int], *, final: bool) -> None:
        """Append token ids to the log. `final`: they replace the draft, and leading ids that equal
        those of the draft keep their KV."""
        if final and self._draft:
            await self._engine.append(self.session_id, ids, "commit")
            self._draft = []
        else:
            await self._engine.append(self.session_id, ids)

    async def _start_turn(
        self,
        spans: tuple[Span, ...],
        desired: tuple[Span, ...],
        header: list[int],
        sampling: Sampling,
        turn_id: str,
        traceparent: str,
    ) -> TurnStream:
        _, old, new, keep = self._compare(spans, desired, header)
        changes: list[Awaitable[object]] = []
        if keep < len(old):
            changes.append(self._engine.rewind(self.session_id, self.length - len(old) + keep))
        if keep < len(new):
            changes.append(self._engine.append(self.session_id, new[keep:]))
        starting = self._engine.generate(
            self.session_id, sampling, turn_id, traceparent=traceparent
        )
        *results, started = await asyncio.gather(*changes, starting, return_exceptions=True)
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        if failed is None and isinstance(started, TurnStream):
            self._spans, self._tail, self._turn = desired, header, started
            self.pushed_tokens = 0
            return started
        if isinstance(started, TurnStream):
            await self.cancel_turn(started, discard_output=True)
        try:
            raise failed or started  # type: ignore[misc]  # without `failed` it is an exception
        finally:
            del results, started, failed  # which keep this frame

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

    # ------------------------------------------------------------ open, attach, fork

    async def _open_new(self, desired: Sequence[Span], tail: Sequence[int], *, waits: bool) -> None:
        """Open the session in the engine, if it is new."""
        if self._may_exist:
            return
        parent, self._parent, self._may_exist = self._parent, None, True
        forked = None
        if parent is not None:
            forked = await parent.fork_into(self.session_id, desired, tail, self._fence)
        if forked is None:
            await self._engine.open(
                self.session_id, group=self._group, fence=self._fence, waits=waits
            )
        self._spans, self._tail = forked or ((), [])

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
            except (SessionDetached, UnknownEngineSession):
                return None
            return spans[:same], old[:keep]

    async def _attach(
        self,
        spans: tuple[Span, ...],
        tail: Sequence[int],
        draft: Sequence[int],
        unfinished: UnfinishedTurn | TurnStream | None = None,
        *,
        waits: bool = True,
    ) -> TurnStream | None:
        emitted = unfinished.ids if isinstance(unfinished, TurnStream) else ()
        return await self._engine.attach(
            self.session_id,
            [*(id for span in spans for id in span.ids), *tail, *emitted],
            provisional=draft,
            unfinished=unfinished,
            group=self._group,
            fence=self._fence,
            waits=waits,
        )

"""Strand: one engine session, and what we know of its log. Brings it up to a conversation with the
fewest tokens: rewinds to the first that differs, appends what follows."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence

import msgspec

from continuo.engine import Sampling, Turn, Unfinished, UnknownSession
from continuo.realtime.conversation.tokenization import Span, common_prefix
from continuo.realtime.generation.engine_port import Door


class Synced(msgspec.Struct, frozen=True):
    rewound: int
    appended: int


class Strand:
    """`spans` are in the engine's log whole, `tail` stands behind them, and behind that `draft`,
    which is provisional. One call at a time."""

    def __init__(
        self,
        door: Door,
        session: str,
        *,
        scope: str = "",
        parent: "Strand | None" = None,
        fence: int = 0,
        left: bool = False,
    ) -> None:
        """`parent`: begins as a fork of it, sharing its KV, as far as they say the same. `left`: it
        was begun elsewhere, and an engine may still have it. `fence`: the right to it."""
        self._door = door
        self._name = session
        self._opened = 0
        self._scope = scope
        self._fence = fence
        self._attaches = left
        self._spans: tuple[Span, ...] | None = None
        self._tail: list[int] = []
        self._draft: list[int] = []
        self._parent = parent
        self._left: list[str] = []
        """Sessions under earlier names that the engine may still have."""
        self._turn: Turn | None = None
        """It adds to the log, and what it has added is not known here yet."""
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """The engine was lost, or did not answer: what its log holds is not known any more."""
        self._left.append(self.session)
        self._spans, self._tail, self._draft, self._turn = None, [], [], None
        self._opened += 1

    @property
    def session(self) -> str:
        """The engine's name for it; a new one each time the engine was lost."""
        return f"{self._name}.{self._opened}" if self._opened else self._name

    @property
    def length(self) -> int:
        return sum(len(span.ids) for span in self._spans or ()) + len(self._tail)

    async def sync(
        self,
        spans: Sequence[Span],
        tail: Sequence[int] = (),
        *,
        draft: Sequence[int] | None = None,
    ) -> Synced:
        """The engine's log becomes the ids of `spans` and `tail`, and behind them `draft` (None: as
        it is). Raises EngineError."""
        async with self._sure():
            try:
                return await self._sync(tuple(spans), list(tail), draft)
            except UnknownSession:
                # The engine has let go of it (restart, time-out): what was said is here.
                self._spans = None
                return await self._sync(tuple(spans), list(tail), draft)

    @contextlib.asynccontextmanager
    async def _sure(self) -> AsyncGenerator[None]:
        """One call at a time. Of one that was cancelled the engine may still do the rest."""
        async with self._lock:
            try:
                yield
            except asyncio.CancelledError:
                self.forget()
                raise

    def beside(self, session: str) -> "Strand":
        """Another one that begins with what both have in common."""
        return Strand(self._door, session, scope=self._scope, parent=self, fence=self._fence)

    def fenced(self, fence: int) -> None:
        """The right to it may be a new one."""
        if fence != self._fence:
            self._fence = fence
            self._door.fence(self.session, fence)

    async def go_on(
        self,
        spans: Sequence[Span],
        header: Sequence[int],
        said: Sequence[int],
        sampling: Sampling,
        turn: str,
    ) -> Turn:
        """A turn that was begun elsewhere goes on behind `spans`, `header` and the ids it has said;
        it says these first. Raises EngineError."""
        async with self._lock:
            self._attaches, self._parent = False, None
            unfinished = Unfinished(turn, sampling, len(said))
            made = await self._attach(spans, [*header, *said], unfinished)
            assert made is not None, "it is unfinished"
            self._spans, self._tail, self._draft = tuple(spans), list(header), []
            self._turn = made
            return made

    async def _attach(
        self, spans: Sequence[Span], tail: Sequence[int], unfinished: Unfinished | None = None
    ) -> Turn | None:
        return await self._door.attach(
            self.session,
            [*(id for span in spans for id in span.ids), *tail],
            unfinished=unfinished,
            cache_scope=self._scope,
            fence=self._fence,
        )

    async def answer(
        self, spans: Sequence[Span], header: Sequence[int], sampling: Sampling, turn: str
    ) -> Turn:
        """The engine's log becomes the ids of `spans` and `header`, and a turn starts there. Both
        are said to the engine at once, so that nothing of the prompt is prefilled in between: the
        turn finds in KV what was there before. Raises EngineError."""
        async with self._sure():
            try:
                return await self._answer(tuple(spans), list(header), sampling, turn)
            except UnknownSession:
                self._spans = None
                return await self._answer(tuple(spans), list(header), sampling, turn)

    def drawn(self, turn: Turn, ids: Sequence[int]) -> None:
        """The turn has ended; it has put these into the log. Means nothing where the log it ran on
        was forgotten meanwhile."""
        if turn is not self._turn:
            return
        self._turn = None
        self._tail.extend(ids)
        ended = turn.ended
        assert ended is not None, "a turn that has drawn all its ids has ended"
        assert self.length == ended.length, "the engine's log is what we think it is"

    async def cancel(self, turn: Turn, *, drop: bool = False) -> None:
        """`drop`: what it said is forgotten."""
        await self._door.cancel(turn.session, turn.id, drop=drop)

    def _forget_unheard(self) -> None:
        """A turn whose end nobody has waited for may have added anything."""
        if self._turn is not None:
            self.forget()

    async def close(self) -> None:
        async with self._lock:
            await self._drop_left()
            if self._spans is not None:
                self._spans = None
                await self._door.close(self.session)

    async def _drop_left(self) -> None:
        while self._left:
            with contextlib.suppress(UnknownSession):
                await self._door.close(self._left[-1])
            self._left.pop()

    async def _sync(
        self, wanted: tuple[Span, ...], tail: list[int], draft: Sequence[int] | None
    ) -> Synced:
        self._forget_unheard()
        if self._spans is None:
            self._spans, self._tail = await self._begin(wanted, tail)
            self._draft = []
        same, old, new, keep = self._compare(self._spans, wanted, tail)
        base = self.length - len(old)
        if keep < len(old):
            await self._door.rewind(self.session, base + keep)
            self._spans, self._tail = wanted[:same], old[:keep]
        if keep < len(new):
            await self._append(new[keep:], final=draft is not None and not draft)
        self._spans, self._tail = wanted, tail
        if draft is not None and self._draft != list(draft):
            await self._door.append(self.session, draft, "provisional")
            self._draft = list(draft)
        return Synced(rewound=len(old) - keep, appended=len(new) - keep)

    async def _answer(
        self, wanted: tuple[Span, ...], header: list[int], sampling: Sampling, turn: str
    ) -> Turn:
        self._forget_unheard()
        if self._spans is None:
            self._spans, self._tail = await self._begin(wanted, header)
            self._draft = []
        _, old, new, keep = self._compare(self._spans, wanted, header)
        base = self.length - len(old)
        changes: list[Awaitable[object]] = []
        if keep < len(old):
            changes.append(self._door.rewind(self.session, base + keep))
        if keep < len(new):
            changes.append(self._door.append(self.session, new[keep:]))
        starting = self._door.generate(self.session, sampling, turn)
        *results, started = await asyncio.gather(*changes, starting, return_exceptions=True)
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        if failed is None and isinstance(started, Turn):
            self._spans, self._tail, self._turn = wanted, header, started
            return started
        if isinstance(started, Turn):
            await self.cancel(started, drop=True)
            self.forget()
        raise failed or started  # type: ignore[misc]  # without `failed` it is an exception

    def _compare(
        self, spans: tuple[Span, ...], wanted: Sequence[Span], tail: Sequence[int]
    ) -> tuple[int, list[int], list[int], int]:
        """Spans that are the same; the ids behind them as they are and as they should be; how many
        of these are the same."""
        same = common_prefix(spans, wanted)
        old = [id for span in spans[same:] for id in span.ids] + self._tail
        new = [id for span in wanted[same:] for id in span.ids] + list(tail)
        return same, old, new, common_prefix(old, new)

    async def _begin(
        self, wanted: Sequence[Span], tail: Sequence[int]
    ) -> tuple[tuple[Span, ...], list[int]]:
        await self._drop_left()
        parent, self._parent = self._parent, None
        if parent is not None:
            lent = await parent.lend(self.session, wanted, tail, self._fence)
            if lent is not None:
                return lent
        if self._attaches:
            self._attaches = False
            await self._attach(wanted, tail)
            return tuple(wanted), list(tail)
        await self._door.open(self.session, cache_scope=self._scope, fence=self._fence)
        return (), []

    async def lend(
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
                await self._door.fork(self.session, at, child=child, fence=fence)
            except UnknownSession:
                return None
            return spans[:same], old[:keep]

    async def _append(self, ids: list[int], *, final: bool) -> None:
        """`final`: what was a draft may have become this; what both begin with keeps its KV."""
        if final and self._draft:
            await self._door.append(self.session, ids, "commit")
            self._draft = []
        else:
            await self._door.append(self.session, ids)

"""Turn and Piece: one answer as the front sees it. Ids become text here."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import assert_never

import msgspec

from continuo.engine.errors import EngineError, TurnFailed
from continuo.engine.text import Detokenizer, Holdback
from continuo.engine.wire.messages import Sampling, TokenLogprobs, Tokens, TurnEnded


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a turn's output. `text` may be empty (half a character, a possible stop string)
    and never takes anything back; a matched stop string and stop ids are not part of it."""

    first: int
    ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


class _Interruption:
    """Where its engine died, among the pieces of a turn."""


class Turn:
    """One turn in flight: `follow` its pieces, or iterate over them; `ended` is set at the end.

    If the engine dies under it, the turn goes on where it was when the engine is back; meanwhile
    `interrupted` is true. Both ways raise EngineLost if it does not come back,
    StaleFence if another front has taken its session over, TurnFailed if the turn itself broke.
    """

    def __init__(self, id: str, session: str, detokenizer: Detokenizer, sampling: Sampling) -> None:
        self.id = id
        self.session = session
        self.sampling = sampling
        """As it is drawn: with a seed."""
        self.said = 0
        """Ids received."""
        self.ended: TurnEnded | None = None
        self.interrupted = False
        self._over = False
        self._at_end: Callable[[], None] = lambda: None
        self._at_interruption: Callable[[], None] = lambda: None
        self._detokenizer = detokenizer
        self._holdback = Holdback(() if sampling.ignore_eos else sampling.stop)
        self._unspoken = frozenset[int](() if sampling.ignore_eos else sampling.stop_ids)
        self._events: deque[Tokens | TurnEnded | EngineError | _Interruption] = deque()
        """Not taken yet."""
        self._wake: Callable[[], None] = lambda: None
        """Of whoever reads: called when there is an event."""

    def put(self, event: Tokens | TurnEnded | EngineError) -> None:
        """For Engine."""
        if isinstance(event, Tokens):
            if new := event.after(self.said):
                self.interrupted = False
                self.said += len(new.ids)
                self._put(new)
        else:
            self._put(event)
            self._over = True
            self._at_end()

    def _put(self, event: Tokens | TurnEnded | EngineError | _Interruption) -> None:
        self._events.append(event)
        self._wake()

    def interrupt(self) -> None:
        """For Engine: what makes it is gone. Once until it goes on."""
        if not self.interrupted and not self._over:
            self.interrupted = True
            self._put(_Interruption())

    def when_interrupted(self, act: Callable[[], None]) -> None:
        """`act` is called by whoever iterates, between the last piece before its engine died and
        the first piece after that."""
        self._at_interruption = act

    def when_over(self, act: Callable[[], None]) -> None:
        """`act` is called once when the turn has ended, read or not; at once if it has already."""
        self._at_end = act
        if self._over:
            act()

    async def follow(self, take: Callable[[Piece], None]) -> None:
        """Calls `take` with each piece: those that are there, then each as soon as it comes, with
        no wake-up of a task between. Returns at the end; also raises what `take` raises."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            try:
                while self._events and not end.done():
                    self._hear(self._events.popleft(), take)
                    if self.ended is not None:
                        end.set_result(None)
            except Exception as error:
                end.set_exception(error)

        go_on()
        self._wake = go_on
        try:
            await end
        finally:
            self._wake = self._at_interruption = lambda: None  # they refer to who followed
        self._check()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        pieces: deque[Piece] = deque()
        while self.ended is None:
            while not self._events:
                await self._event()
            self._hear(self._events.popleft(), pieces.append)
            while pieces:
                yield pieces.popleft()
        self._check()

    async def _event(self) -> None:
        """Returns when there is one."""
        there = asyncio.Event()
        self._wake = there.set
        await there.wait()

    def _hear(
        self, event: Tokens | TurnEnded | EngineError | _Interruption, take: Callable[[Piece], None]
    ) -> None:
        match event:
            case Tokens():
                take(Piece(event.first, event.ids, self._text(event.ids), event.logprobs))
            case TurnEnded():
                self.ended = event
                if rest := self._rest(event):
                    take(Piece(self.said, [], rest))
            case _Interruption():
                self._at_interruption()
            case EngineError():
                raise event
            case _:
                assert_never(event)

    def _check(self) -> None:
        if self.ended is not None and self.ended.reason == "failed":
            raise TurnFailed(self.ended.error or "the turn failed")

    def _text(self, ids: list[int]) -> str:
        if ids and ids[-1] in self._unspoken:
            ids = ids[:-1]
        return self._holdback.push(self._detokenizer.push(ids))

    def _rest(self, ended: TurnEnded) -> str:
        """What was held back and turned out to be neither half a character nor a stop string."""
        rest = self._holdback.push(self._detokenizer.flush())
        return rest if ended.stop is not None else rest + self._holdback.flush()

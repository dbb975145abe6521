"""Turn and Piece: one answer as the front sees it. Ids become text here."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import assert_never

import msgspec

from engine.errors import EngineError, TurnFailed
from engine.messages import Sampling, TokenLogprobs, Tokens, TurnEnded
from engine.text import Detokenizer, Holdback


class Piece(msgspec.Struct, frozen=True):
    """A stretch of a turn's output. `text` may be empty (half a character, a possible stop string)
    and never takes anything back; a matched stop string and stop ids are not part of it."""

    first: int
    ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


class _Interruption:
    """Where its engine died, among the pieces of a turn."""


class Turn:
    """One turn in flight: iterate over its pieces; `ended` is set when the iteration stops.

    If the engine dies under it, the turn goes on where it was when the engine is back; meanwhile
    `interrupted` is true. The iteration raises EngineLost if it does not come back,
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
        self._reader: asyncio.Future[None] | None = None
        """Waits for an event."""

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
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

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

    async def __aiter__(self) -> AsyncIterator[Piece]:
        said = 0
        while self.ended is None:
            while not self._events:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
            event = self._events.popleft()
            match event:
                case Tokens():
                    said = event.first + len(event.ids)
                    yield Piece(event.first, event.ids, self._text(event.ids), event.logprobs)
                case TurnEnded():
                    self.ended = event
                    rest = self._rest(event)
                    if rest:
                        yield Piece(said, [], rest)
                    if event.reason == "failed":
                        raise TurnFailed(event.error or "the turn failed")
                case _Interruption():
                    self._at_interruption()
                case EngineError():
                    raise event
                case _:
                    assert_never(event)

    def _text(self, ids: list[int]) -> str:
        if ids and ids[-1] in self._unspoken:
            ids = ids[:-1]
        return self._holdback.push(self._detokenizer.push(ids))

    def _rest(self, ended: TurnEnded) -> str:
        """What was held back and turned out to be neither half a character nor a stop string."""
        rest = self._holdback.push(self._detokenizer.flush())
        return rest if ended.stop is not None else rest + self._holdback.flush()

"""Turn and Piece: one answer as the front sees it. Ids become text here."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import assert_never

import msgspec

from continuo.engine.errors import EngineError, TurnFailed
from continuo.engine.text import Detokenizer, StopStringFilter
from continuo.engine.wire.messages import Sampling, TokenLogprobs, TurnEnded, TurnTokens


class OutputChunk(msgspec.Struct, frozen=True, gc=False):
    """A stretch of a turn's output. `text` may be empty (half a character, a possible stop string)
    and never takes anything back; a matched stop string and stop ids are not part of it."""

    first: int
    ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


class _EngineLossMarker:
    """Where its engine died, among the pieces of a turn."""


class TurnStream:
    """One turn in flight: `follow` its pieces, or iterate over them; `ended` is set at the end.

    If the engine dies under it, the turn goes on where it was when the engine is back; meanwhile
    `interrupted` is true. Both ways raise EngineLost if it does not come back,
    StaleFence if another front has taken its session over, TurnFailed if the turn itself broke.
    """

    def __init__(
        self, turn_id: str, session: str, detokenizer: Detokenizer, sampling: Sampling
    ) -> None:
        self.id = turn_id
        self.session = session
        self.sampling = sampling
        """As it is drawn: with a seed."""
        self.received = 0
        """Ids received."""
        self.ended: TurnEnded | None = None
        self.is_interrupted = False
        self._has_ended = False
        self._on_ended: Callable[[], None] = lambda: None
        self._on_interrupted: Callable[[], None] = lambda: None
        self._detokenizer = detokenizer
        self._stop_filter = StopStringFilter(() if sampling.ignore_eos else sampling.stop)
        self._hidden_ids = frozenset[int](() if sampling.ignore_eos else sampling.stop_ids)
        self._events: deque[TurnTokens | TurnEnded | EngineError | _EngineLossMarker] = deque()
        """Not taken yet."""
        self._wake: Callable[[], None] = lambda: None
        """Of whoever reads: called when there is an event."""

    def put(self, event: TurnTokens | TurnEnded | EngineError) -> None:
        """For Engine."""
        if isinstance(event, TurnTokens):
            if new := event.select_new(self.received):
                self.is_interrupted = False
                self.received += len(new.ids)
                self._enqueue(new)
        else:
            self._enqueue(event)
            self._has_ended = True
            self._on_ended()

    def _enqueue(self, event: TurnTokens | TurnEnded | EngineError | _EngineLossMarker) -> None:
        self._events.append(event)
        self._wake()

    def interrupt(self) -> None:
        """For Engine: what makes it is gone. Once until it goes on."""
        if not self.is_interrupted and not self._has_ended:
            self.is_interrupted = True
            self._enqueue(_EngineLossMarker())

    def set_on_interrupted(self, callback: Callable[[], None]) -> None:
        """`act` is called by whoever iterates, between the last piece before its engine died and
        the first piece after that."""
        self._on_interrupted = callback

    def set_on_ended(self, callback: Callable[[], None]) -> None:
        """`act` is called once when the turn has ended, read or not; at once if it has already."""
        self._on_ended = callback
        if self._has_ended:
            callback()

    async def consume(self, on_chunk: Callable[[OutputChunk], None]) -> None:
        """Calls `take` with each piece: those that are there, then each as soon as it comes, with
        no wake-up of a task between. Returns at the end; also raises what `take` raises."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            try:
                while self._events and not end.done():
                    self._handle(self._events.popleft(), on_chunk)
                    if self.ended is not None:
                        end.set_result(None)
            except Exception as error:
                end.set_exception(error)

        go_on()
        self._wake = go_on
        try:
            await end
        finally:
            self._wake = self._on_interrupted = lambda: None  # they refer to who followed
        self._raise_if_failed()

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        pieces: deque[OutputChunk] = deque()
        while self.ended is None:
            while not self._events:
                await self._wait_for_event()
            self._handle(self._events.popleft(), pieces.append)
            while pieces:
                yield pieces.popleft()
        self._raise_if_failed()

    async def _wait_for_event(self) -> None:
        """Returns when there is one."""
        there = asyncio.Event()
        self._wake = there.set
        await there.wait()

    def _handle(
        self,
        event: TurnTokens | TurnEnded | EngineError | _EngineLossMarker,
        take: Callable[[OutputChunk], None],
    ) -> None:
        match event:
            case TurnTokens():
                take(OutputChunk(event.first, event.ids, self._decode(event.ids), event.logprobs))
            case TurnEnded():
                self.ended = event
                if rest := self._flush_text(event):
                    take(OutputChunk(self.received, [], rest))
            case _EngineLossMarker():
                self._on_interrupted()
            case EngineError():
                raise event
            case _:
                assert_never(event)

    def _raise_if_failed(self) -> None:
        if self.ended is not None and self.ended.reason == "failed":
            raise TurnFailed(self.ended.error or "the turn failed")

    def _decode(self, ids: list[int]) -> str:
        if ids and ids[-1] in self._hidden_ids:
            ids = ids[:-1]
        return self._stop_filter.push(self._detokenizer.push(ids))

    def _flush_text(self, ended: TurnEnded) -> str:
        """What was held back and turned out to be neither half a character nor a stop string."""
        rest = self._stop_filter.push(self._detokenizer.flush())
        return rest if ended.stop is not None else rest + self._stop_filter.flush()

"""TurnStream: the output of one turn as the client reads it. Decodes the ids to text."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import assert_never

import msgspec

from continuo.engine.errors import EngineError, TurnFailed
from continuo.engine.sampling import Sampling
from continuo.engine.text import Detokenizer, StopStringFilter
from continuo.engine.wire.messages import TokenLogprobs, TurnEnded, TurnTokens


class OutputChunk(msgspec.Struct, frozen=True, gc=False):
    """Consecutive output ids of a turn and the text that they complete. Text is held back while it
    ends within a character or may begin a stop string, so `text` may be empty and is never
    retracted. It excludes stop ids and a matched stop string. `first` is the index of ids[0] in the
    output."""

    first: int
    ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


class _EngineLossMarker:
    """Queue entry that marks the loss of the engine among the events of a turn."""


class TurnStream:
    """Asynchronous output of one turn: `consume` its chunks, or iterate over them. `ended` is set
    at the end.

    If the engine dies, the turn resumes after the last id received, on the restarted or another
    engine; until then `is_interrupted` is true. Both ways of reading raise EngineLost if no engine
    is left, StaleEngineFence if another gateway has taken the session over, and TurnFailed if the
    turn itself failed.
    """

    def __init__(
        self,
        turn_id: str,
        session: str,
        detokenizer: Detokenizer,
        sampling: Sampling,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_ended`: called once at the end of the turn, whether or not the output was read."""
        self.id = turn_id
        self.session = session
        self.sampling = sampling
        """Sampling parameters, including the seed."""
        self.received = 0
        """Number of ids received."""
        self.ended: TurnEnded | None = None
        self.is_interrupted = False
        self._has_ended = False
        self._on_ended = on_ended
        self._on_interrupted: Callable[[], None] = lambda: None
        self._detokenizer = detokenizer
        self._stop_filter = StopStringFilter(() if sampling.ignore_eos else sampling.stop)
        self._hidden_ids = frozenset[int](() if sampling.ignore_eos else sampling.stop_ids)
        self._events: deque[TurnTokens | TurnEnded | EngineError | _EngineLossMarker] = deque()
        """Received events that are not read yet."""
        self._wake: Callable[[], None] = lambda: None
        """Callback that wakes the reader; called after each event is queued."""

    def put(self, event: TurnTokens | TurnEnded | EngineError) -> None:
        """Deliver an event of the engine, or the error that ends the turn. Called by the router."""
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
        """Record the loss of the engine, at most once until the turn resumes. Called by the
        router."""
        if not self.is_interrupted and not self._has_ended:
            self.is_interrupted = True
            self._enqueue(_EngineLossMarker())

    async def consume(
        self,
        on_chunk: Callable[[OutputChunk], None],
        on_interrupted: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_chunk` with each chunk: with the available ones now, with later ones as soon as
        they arrive, without waking a task. Call `on_interrupted` when the engine was lost, between
        the last chunk before the loss and the first one after it. Returns at the end of the turn.
        Exceptions of both are raised here.
        """
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def drain() -> None:
            try:
                while self._events and not end.done():
                    self._handle(self._events.popleft(), on_chunk)
                    if self.ended is not None:
                        end.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised to the reader by its future
                end.set_exception(error)

        self._on_interrupted = on_interrupted
        drain()
        self._wake = drain
        try:
            await end
        finally:
            self._wake = self._on_interrupted = lambda: None  # release the reader
        self._raise_if_failed()

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        chunks: deque[OutputChunk] = deque()
        while self.ended is None:
            while not self._events:
                await self._wait_for_event()
            self._handle(self._events.popleft(), chunks.append)
            while chunks:
                yield chunks.popleft()
        self._raise_if_failed()

    async def _wait_for_event(self) -> None:
        """Wait until an event has been received."""
        available = asyncio.Event()
        self._wake = available.set
        await available.wait()

    def _handle(
        self,
        event: TurnTokens | TurnEnded | EngineError | _EngineLossMarker,
        on_chunk: Callable[[OutputChunk], None],
    ) -> None:
        match event:
            case TurnTokens():
                on_chunk(
                    OutputChunk(event.first, event.ids, self._decode(event.ids), event.logprobs)
                )
            case TurnEnded():
                self.ended = event
                if rest := self._flush_text(event):
                    on_chunk(OutputChunk(self.received, [], rest))
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
        """Return the text held back until the end of the turn: an incomplete character and, unless
        a stop string ended the turn, text that might have begun a stop string."""
        rest = self._stop_filter.push(self._detokenizer.flush())
        return rest if ended.stop is not None else rest + self._stop_filter.flush()

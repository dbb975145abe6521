"""TurnStream: the output of one turn as the client reads it. Decodes the ids to text."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import assert_never

import msgspec

from continuo.engine.errors import EngineError, SessionDetached, TurnFailed
from continuo.engine.sampling import Sampling
from continuo.engine.text import (
    TEXT,
    DecodedSegment,
    OutputChannel,
    OutputDecoder,
    StopStringFilter,
)
from continuo.engine.wire.messages import (
    TokenLogprobs,
    TurnEnded,
    TurnEndReason,
    TurnTokens,
)


class OutputChunk(msgspec.Struct, frozen=True, gc=False):
    """Consecutive output ids of a turn and the text that they complete. Text is held back while it
    ends within a character or may begin a stop string, so `text` may be empty and is never
    retracted. It excludes stop ids, a matched stop string, and the tokens that separate channels.
    `first` is the index of ids[0] in the output."""

    first: int
    ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None
    channel: OutputChannel = TEXT
    """The part of the output that the ids belong to: text, reasoning, or a call."""


class TurnStream:
    """Asynchronous output of one turn: `consume` its chunks, or iterate over them. `ended` is set
    at the end.

    If the link or engine of the session is lost, both ways of reading raise SessionDetached after
    the last id received. When the session has been attached again with this stream, the reader
    reads on: no id is lost or doubled. Both ways of reading raise EngineLost if no engine is left,
    StaleEngineFence if another gateway has taken the session over, and TurnFailed if the turn
    itself failed.
    """

    def __init__(
        self,
        turn_id: str,
        session: str,
        decoder: OutputDecoder,
        sampling: Sampling,
        on_ended: Callable[[], None] = lambda: None,
        *,
        traceparent: str = "",
    ) -> None:
        """Args:
        turn_id: id by which later appends can branch from the finished turn, in a regular session.
        session: id of the engine session that runs the turn.
        decoder: of this turn alone: it keeps ids that are not a whole character yet.
        sampling: with the seed that is used. Its stop strings, and a stop id at the end, are left
            out of the text, unless it has `ignore_eos`.
        on_ended: called once at the end of the turn, whether or not the output was read.
        traceparent: as in `Generate`; sent again when the turn continues on another engine.
        """
        self.id = turn_id
        self.session = session
        self.sampling = sampling
        """Sampling parameters, including the seed."""
        self.traceparent = traceparent
        self.ids: list[int] = []
        """Ids received."""
        self.prompt_tokens = 0
        """Length of the session's log when the turn began."""
        self.ended: TurnEnded | None = None
        self.is_paused = False
        self._is_detached = False
        self.has_ended = False
        """Whether the end was received. It may not have been read yet: see `ended`."""
        self._on_ended = on_ended
        self._decoder = decoder
        self._channel = TEXT
        self._stop_filter = StopStringFilter(() if sampling.ignore_eos else sampling.stop)
        self._hidden_ids = frozenset[int](() if sampling.ignore_eos else sampling.stop_ids)
        self._events: deque[TurnTokens | TurnEnded | EngineError] = deque()
        """Received events that are not read yet."""
        self._wake: Callable[[], None] = lambda: None
        """Callback that wakes the reader; called after each event is queued."""

    @property
    def has_begun(self) -> bool:
        return self.prompt_tokens > 0

    @property
    def received(self) -> int:
        """Number of ids received."""
        return len(self.ids)

    def put(self, event: TurnTokens | TurnEnded | EngineError) -> None:
        """Deliver an event of the engine, or the error that ends the turn. Called by the router."""
        if isinstance(event, TurnTokens):
            if new := event.select_new(self.received):
                self.ids.extend(new.ids)
                self._enqueue(new)
        else:
            self._enqueue(event)
            self.has_ended = True
            self._on_ended()

    def _enqueue(self, event: TurnTokens | TurnEnded | EngineError) -> None:
        self._events.append(event)
        self._wake()

    def detach(self) -> None:
        """Raise SessionDetached to the reader, at most once until `attach`. Called by the
        router."""
        if not self._is_detached and not self.has_ended:
            self._is_detached = True
            self._enqueue(SessionDetached(f"the engine of session {self.session} was lost"))

    def attach(self) -> None:
        """Record that the session is being attached again. Called by the router."""
        self._is_detached = False
        self._events = deque(
            event for event in self._events if not isinstance(event, SessionDetached)
        )

    def end(self, reason: TurnEndReason, error: str | None = None) -> None:
        """End a turn that no engine may continue. Called by the router."""
        self.put(
            TurnEnded(
                session=self.session,
                turn=self.id,
                reason=reason,
                length=self.prompt_tokens + self.received,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=0,
                output_tokens=self.received,
                seed=self.sampling.seed or 0,
                error=error,
            )
        )

    async def consume(
        self,
        on_chunk: Callable[[OutputChunk], None],
        on_interrupted: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_chunk` with each chunk: with the available ones now, with later ones as soon as
        they arrive, without waking a task; and `on_interrupted`, between the chunks, when the
        server that computes for the engine is lost, after which the turn continues by itself.
        Returns at the end of the turn. Exceptions of the callbacks are raised here.
        """
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        errors: list[Exception] = []
        """The error that ended it, until that is raised: it would keep the frames it is in."""

        def drain() -> None:
            try:
                while self._events and not end.done():
                    event = self._events.popleft()
                    if isinstance(event, EngineError):
                        errors.append(event)  # raised here, it would keep the frames of its sender
                        end.set_result(None)
                        return
                    self._handle(event, on_chunk, on_interrupted)
                    if self.ended is not None:
                        end.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised to the reader
                errors.append(error)
                end.set_result(None)

        drain()
        self._wake = drain
        try:
            await end
        finally:
            self._wake = lambda: None  # release the reader
        if errors:
            raise errors.pop()
        self._raise_if_failed()

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        chunks: deque[OutputChunk] = deque()
        while self.ended is None:
            while not self._events:
                await self._wait_for_event()
            event = self._events.popleft()
            if isinstance(event, EngineError):
                try:
                    raise event
                finally:
                    del event  # which keeps this frame
            self._handle(event, chunks.append)
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
        event: TurnTokens | TurnEnded,
        on_chunk: Callable[[OutputChunk], None],
        on_interrupted: Callable[[], None] = lambda: None,
    ) -> None:
        match event:
            case TurnTokens(interrupted=True):
                on_interrupted()
            case TurnTokens():
                self._decode(event, on_chunk)
            case TurnEnded():
                self.ended = event
                self._flush_text(event, on_chunk)
            case _:
                assert_never(event)

    def _raise_if_failed(self) -> None:
        if self.ended is not None and self.ended.reason == "failed":
            raise TurnFailed(self.ended.error or "the turn failed")

    def _decode(self, event: TurnTokens, on_chunk: Callable[[OutputChunk], None]) -> None:
        """Emit a chunk for each channel of the new ids."""
        ids, stop = event.ids, list[int]()
        if ids and ids[-1] in self._hidden_ids:
            ids, stop = ids[:-1], ids[-1:]
        if self._decoder.is_text_alone:
            text = self._stop_filter.push(self._decoder.push_text(ids))
            on_chunk(OutputChunk(event.first, event.ids, text, event.logprobs))
            return
        first, logprobs = event.first, event.logprobs
        segments = list(self._decoder.push(ids))
        if stop and (not segments or segments[-1].channel.kind != "text"):
            segments.append(DecodedSegment(TEXT, [], ""))
        if stop:
            segments[-1].ids.extend(stop)
        for segment in segments:
            rest = self._switch_channel(segment.channel)
            if rest:
                on_chunk(OutputChunk(first, [], rest[1], channel=rest[0]))
            known, logprobs = _split_logprobs(logprobs, len(segment.ids))
            text = self._filter(segment.channel, segment.text)
            on_chunk(OutputChunk(first, segment.ids, text, known, segment.channel))
            first += len(segment.ids)

    def _switch_channel(self, channel: OutputChannel) -> tuple[OutputChannel, str] | None:
        """Begin another channel. Returns the one before and its text that might have begun a stop
        string, if there is any."""
        before, self._channel = self._channel, channel
        if before is channel or before.kind != "text":
            return None
        held = self._stop_filter.flush()
        return (before, held) if held else None

    def _filter(self, channel: OutputChannel, text: str) -> str:
        return self._stop_filter.push(text) if channel.kind == "text" else text

    def _flush_text(self, ended: TurnEnded, on_chunk: Callable[[OutputChunk], None]) -> None:
        """Emit the text held back until the end of the turn: an incomplete character and, unless a
        stop string ended the turn, text that might have begun a stop string."""
        rest = "".join(
            self._filter(segment.channel, segment.text) for segment in self._decoder.flush()
        )
        if ended.stop is None and self._channel.kind == "text":
            rest += self._stop_filter.flush()
        if rest:
            on_chunk(OutputChunk(self.received, [], rest, channel=self._channel))


def _split_logprobs(
    logprobs: list[TokenLogprobs] | None, count: int
) -> tuple[list[TokenLogprobs] | None, list[TokenLogprobs] | None]:
    """Split the log-probabilities of the first `count` ids from the rest."""
    return (None, None) if logprobs is None else (logprobs[:count], logprobs[count:])

"""TurnRequests: the requests that draw the output of a turn, until it has ended.

If the server is lost, the turn continues by another request after the ids received. Where the next
id depends on more than the ids before it, the other request repeats the output from its beginning,
with the same seed, and its ids are compared with those received. So no id is emitted twice, and
none is emitted that contradicts an earlier one. A turn whose requests the server does not survive
fails instead: see `Suspicion`.
"""

import asyncio
import logging
from array import array
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Protocol

from continuo.engine.core.turn import Turn
from continuo.engine.upstream.errors import (
    OtherModel,
    ReplyLost,
    RequestRefused,
    ServerBusy,
    ServerLost,
    UnusableReply,
)
from continuo.engine.upstream.sequence import UpstreamSequence
from continuo.engine.upstream.server import Chunk, Completion, UpstreamServer
from continuo.engine.upstream.suspicion import IDS_TO_CLEAR, REFUSED_LOSSES
from continuo.engine.upstream.watch import ServerWatch

log = logging.getLogger(__name__)

RETRY_S = (0.1, 0.3, 1.0, 2.0)
"""Seconds before each next request to a server that is lost; the last for all further ones."""
GIVE_UP_S = 120.0
"""Seconds without an id after which the turn of a lost server fails."""


class TurnReceiver(Protocol):
    """The receiver of what requests bring. It ignores what is for a turn that has ended."""

    def apply_chunk(self, sequence: UpstreamSequence, turn: Turn, chunk: Chunk) -> None: ...

    def interrupt_turn(self, sequence: UpstreamSequence, turn: Turn) -> None: ...

    def fail_turn(self, sequence: UpstreamSequence, turn: Turn, problem: str) -> None: ...


class TurnRequests:
    def __init__(
        self,
        server: UpstreamServer,
        watch: ServerWatch,
        receiver: TurnReceiver,
        vocab_size: int,
        clock: Callable[[], float],
    ) -> None:
        """Args:
        server: draws the ids.
        watch: that of the server.
        receiver: gets the ids.
        vocab_size: each id of the server must be below it.
        clock: seconds of the monotonic clock.
        """
        self._server = server
        self._watch = watch
        self._receiver = receiver
        self._vocab_size = vocab_size
        self._clock = clock
        self.tokens_drawn = 0
        """Ids received, those that a turn repeats after a loss included."""
        self._suspect_permit = asyncio.Lock()
        """Held by the one suspect whose request is sent."""

    def add_loss(self, sequence: UpstreamSequence, sent_tokens: int) -> None:
        """Count a loss of the server against the first `sent_tokens` ids of a session."""
        sequence.suspicion.add_loss(sent_tokens, self._clock())

    def count_losses(self, sequence: UpstreamSequence) -> int:
        """Return how many losses of the server count against a session."""
        return sequence.suspicion.count(self._clock())

    async def draw(self, sequence: UpstreamSequence, turn: Turn) -> None:
        """Draw the output of a turn until it has ended, by itself or by a command."""
        turn.first_step_s = self._clock()
        if (problem := self._find_problem(sequence, turn)) is not None:
            self._receiver.fail_turn(sequence, turn, problem)
            return
        retries = _Retries(self._clock())
        while sequence.turn is turn:
            emitted = turn.output_tokens
            try:
                await self._request(sequence, turn, retries)
            except (RequestRefused, UnusableReply, OtherModel) as error:
                self._receiver.fail_turn(sequence, turn, str(error))
                return
            except ServerLost as error:
                if turn.output_tokens > emitted:
                    retries = _Retries(self._clock())
                problem = self._handle_loss(sequence, turn, retries, error)
                if problem is not None:
                    self._receiver.fail_turn(sequence, turn, problem)
                    return
                await asyncio.sleep(RETRY_S[min(retries.count, len(RETRY_S)) - 1])

    def _find_problem(self, sequence: UpstreamSequence, turn: Turn) -> str | None:
        """Explain why a turn must not be sent. Returns None if it may."""
        sequence.suspicion.keep(len(sequence.ids))
        if sequence.suspicion.is_refused(self._clock()):
            return (
                f"{self._server.kind} was lost {REFUSED_LOSSES} times while it computed this"
                " session, whose ids are not sent again until some of them are replaced"
            )
        return self._watch.problem or self._server.find_problem(turn.sampling)

    def _handle_loss(
        self, sequence: UpstreamSequence, turn: Turn, retries: "_Retries", error: ServerLost
    ) -> str | None:
        """Count a loss. Explains why the turn cannot continue; returns None if it can."""
        kind, now = self._server.kind, self._clock()
        if isinstance(error, ReplyLost):
            self.add_loss(sequence, len(sequence.ids))
            if sequence.suspicion.is_refused(now):
                log.error(
                    "turn %s fails: %s was lost %d times with it", turn.id, kind, REFUSED_LOSSES
                )
                return (
                    f"{kind} was lost {REFUSED_LOSSES} times while it computed this turn: {error}"
                )
        if now - retries.began_s >= GIVE_UP_S:
            return f"the server is lost: {error}"
        if not retries.count:
            log.warning("turn %s continues when %s answers: %s", turn.id, kind, error)
        if not isinstance(error, ServerBusy):
            if not retries.is_interrupted:
                self._receiver.interrupt_turn(sequence, turn)
            retries.is_interrupted = True
        sequence.computed = 0
        retries.count += 1
        return None

    async def _request(self, sequence: UpstreamSequence, turn: Turn, retries: "_Retries") -> None:
        """Send one request for the rest of a turn, and apply what it brings. After a loss, the
        server must answer before; and a suspect waits until no other suspect's request is
        computed, which ends with the first ids that clear the other one."""
        async with AsyncExitStack() as permit:
            if sequence.suspicion.is_suspect(self._clock()):
                waiting_s = self._clock()
                await permit.enter_async_context(self._suspect_permit)
                retries.began_s += self._clock() - waiting_s
            if retries.is_interrupted:
                await self._watch.confirm()
            emitted = turn.output_tokens
            async with aclosing(self._chunks(sequence, turn)) as chunks:
                async for chunk in chunks:
                    self._receiver.apply_chunk(sequence, turn, chunk)
                    has_ended = sequence.turn is not turn
                    if has_ended or turn.output_tokens - emitted >= IDS_TO_CLEAR:
                        sequence.suspicion.clear()
                        await permit.aclose()
                    if has_ended:
                        return

    async def _chunks(self, sequence: UpstreamSequence, turn: Turn) -> AsyncGenerator[Chunk]:
        """Send a request, and yield what is new in its chunks. Raises UpstreamError."""
        replay = _Replay(sequence.ids[turn.prompt_tokens :] if is_replayed(turn) else array("i"))
        start = len(sequence.ids) - replay.left
        request = Completion(
            session=sequence.id,
            ids=sequence.ids[:start],
            sampling=turn.sampling,
            max_tokens=turn.max_output_tokens - turn.output_tokens + replay.left,
            seed=turn.seed,
            scope=sequence.scope,
        )
        async with aclosing(self._server.generate(request)) as chunks:
            async for chunk in chunks:
                if chunk.ids and not 0 <= min(chunk.ids) <= max(chunk.ids) < self._vocab_size:
                    raise UnusableReply(
                        f"the server has drawn ids that {self._vocab_size} ids lack"
                    )
                self.tokens_drawn += len(chunk.ids)
                yield replay.skip(chunk)


def is_replayed(turn: Turn) -> bool:
    """Return whether the next id of a turn depends on more than the ids before it: on which of them
    are output, for the penalties of output, or on the state of a grammar."""
    sampling = turn.sampling
    return sampling.grammar is not None or bool(
        sampling.presence_penalty or sampling.frequency_penalty
    )


class _Retries:
    """Attempts to continue a turn since its last id."""

    def __init__(self, now: float) -> None:
        self.began_s = now
        """When they began, in seconds of the monotonic clock, without the time that a suspect
        waited for others."""
        self.count = 0
        self.is_interrupted = False
        """Whether the client knows of the loss, after which the server must answer first."""


class _Replay:
    """The ids that a request is expected to repeat."""

    def __init__(self, ids: "array[int]") -> None:
        self._ids = ids
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._ids) - self._position

    def skip(self, chunk: Chunk) -> Chunk:
        """Return the part of a chunk that is new. Raises UnusableReply if the other part differs
        from what is expected, or the output ends before all of that."""
        if not self.left:
            return chunk
        known = self._ids[self._position : self._position + len(chunk.ids)].tolist()
        self._position += len(known)
        if known != chunk.ids[: len(known)] or (chunk.finish is not None and self.left):
            raise UnusableReply("after a loss, the server has repeated the output with other ids")
        rest = None if chunk.logprobs is None else chunk.logprobs[len(known) :]
        return Chunk(chunk.ids[len(known) :], rest, chunk.finish, chunk.cached_tokens)

"""TurnRequests: the requests that draw the output of a turn, until it has ended.

If the server is lost, the turn continues by another request after the ids received. Where the next
id depends on more than the ids before it, the other request repeats the output from its beginning,
with the same seed, and its ids are compared with those received. So no id is emitted twice, and
none is emitted that contradicts an earlier one.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from continuo.engine.core.turn import Turn
from continuo.engine.upstream.errors import RequestRefused, ServerLost, UnusableReply
from continuo.engine.upstream.sequence import UpstreamSequence
from continuo.engine.upstream.server import Chunk, Completion, UpstreamServer

log = logging.getLogger(__name__)

RETRY_S = (0.1, 0.3, 1.0, 2.0)
"""Seconds before each next request to a server that is lost; the last for all further ones."""
GIVE_UP_S = 120.0
"""Seconds without an id after which the turn of a lost server fails."""


class TurnReceiver(Protocol):
    """The receiver of what requests bring. It ignores what is for a turn that has ended."""

    def apply_chunk(self, sequence: UpstreamSequence, turn: Turn, chunk: Chunk) -> None: ...

    def fail_turn(self, sequence: UpstreamSequence, turn: Turn, problem: str) -> None: ...


class TurnRequests:
    def __init__(
        self,
        server: UpstreamServer,
        receiver: TurnReceiver,
        vocab_size: int,
        clock: Callable[[], float],
    ) -> None:
        """`vocab_size`: each id of the server must be below it. `clock`: seconds of the monotonic
        clock."""
        self._server = server
        self._receiver = receiver
        self._vocab_size = vocab_size
        self._clock = clock
        self.tokens_drawn = 0
        """Ids received, those that a turn repeats after a loss included."""

    async def draw(self, sequence: UpstreamSequence, turn: Turn) -> None:
        """Draw the output of a turn until it has ended, by itself or by a command."""
        problem = self._server.find_problem(turn.sampling)
        if problem is not None:
            self._receiver.fail_turn(sequence, turn, problem)
            return
        attempts, progress_s = 0, self._clock()
        turn.first_step_s = progress_s
        while sequence.turn is turn:
            emitted = turn.output_tokens
            try:
                await self._request(sequence, turn)
            except (RequestRefused, UnusableReply) as error:
                self._receiver.fail_turn(sequence, turn, str(error))
                return
            except ServerLost as error:
                if turn.output_tokens > emitted:
                    attempts, progress_s = 0, self._clock()
                if self._clock() - progress_s >= GIVE_UP_S:
                    self._receiver.fail_turn(sequence, turn, f"the server is lost: {error}")
                    return
                if not attempts:
                    log.warning(
                        "turn %s continues when %s answers: %s", turn.id, self._server.kind, error
                    )
                sequence.computed = 0
                await asyncio.sleep(RETRY_S[min(attempts, len(RETRY_S) - 1)])
                attempts += 1

    async def _request(self, sequence: UpstreamSequence, turn: Turn) -> None:
        """Send one request for the rest of a turn, and apply what it brings."""
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
                self._receiver.apply_chunk(sequence, turn, replay.skip(chunk))
                if sequence.turn is not turn:
                    return


def is_replayed(turn: Turn) -> bool:
    """Return whether the next id of a turn depends on more than the ids before it: on which of them
    are output, for the penalties of output, or on the state of a grammar."""
    sampling = turn.sampling
    return sampling.grammar is not None or bool(
        sampling.presence_penalty or sampling.frequency_penalty
    )


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

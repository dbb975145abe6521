"""UpstreamLoop: commands in, events out, for an engine without a device.

Commands, ids from the server and timeouts take effect one after another on one event loop, and the
events of each round are sent together.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from continuo.engine.core.sessions import Sessions
from continuo.engine.core.turn import Turn
from continuo.engine.upstream.sequence import UpstreamSequence
from continuo.engine.upstream.server import Chunk
from continuo.engine.wire.messages import EngineEvent, LoopCommand, TurnTokens


class UpstreamLoop:
    """The counterpart of EngineLoop; a TurnReceiver. `wake` may be called on any thread, all else
    only on that of the event loop."""

    def __init__(self) -> None:
        self._inbox: deque[LoopCommand] = deque()
        self._outbox: list[EngineEvent] = []
        self._wakeup = asyncio.Event()
        self._sessions: Sessions[UpstreamSequence] | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False

    def enqueue(self, commands: list[LoopCommand]) -> None:
        """Queue commands; they take effect in the next round."""
        self._inbox.extend(commands)
        self._wakeup.set()

    def wake(self) -> None:
        """Wake the loop. Thread-safe."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._wakeup.set)

    def emit(self, event: EngineEvent) -> None:
        self._outbox.append(event)

    def stop(self) -> None:
        self._is_stopping = True
        self._wakeup.set()

    async def run(
        self, sessions: Sessions[UpstreamSequence], send: Callable[[list[EngineEvent]], None]
    ) -> None:
        """Run until `stop`."""
        self._sessions, self._event_loop = sessions, asyncio.get_running_loop()
        while not self._is_stopping:
            self._wakeup.clear()
            while self._inbox:
                sessions.apply(self._inbox.popleft())
            sessions.resume_prepared()
            due_s = sessions.expire_idle()
            events, self._outbox = self._outbox, []
            send(events)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due_s):
                    await self._wakeup.wait()
        send(self._outbox)
        self._sessions = self._event_loop = None

    # ---- what requests bring --------------------------------------------------------------

    def apply_chunk(self, sequence: UpstreamSequence, turn: Turn, chunk: Chunk) -> None:
        """Apply the ids of a chunk, and the end of the turn, if the chunk has it. Ids for a turn
        that has ended are discarded."""
        if self._sessions is None or sequence.turn is not turn:
            return
        if turn.cached_tokens is None and chunk.cached_tokens is not None:
            turn.cached_tokens = min(chunk.cached_tokens, turn.prompt_tokens)
            if turn.residency == "none" and turn.cached_tokens:
                turn.residency = "host" if chunk.is_recalled else "hot"  # in the session's slot
        if chunk.ids:
            sequence.computed = len(sequence.ids)
        self._sessions.transitions.apply_ids(sequence, turn, chunk.ids, chunk.logprobs)
        if sequence.turn is turn and chunk.finish is not None:
            self._sessions.transitions.end_turn(sequence, chunk.finish)
        self._advance(self._sessions, sequence)

    def interrupt_turn(self, sequence: UpstreamSequence, turn: Turn) -> None:
        """Report to the client of a turn that the server is lost."""
        if sequence.turn is turn:
            self.emit(TurnTokens(sequence.id, turn.id, turn.output_tokens, [], interrupted=True))
            self._wakeup.set()

    def fail_turn(self, sequence: UpstreamSequence, turn: Turn, problem: str) -> None:
        """End a turn as failed, unless it has ended."""
        if self._sessions is None or sequence.turn is not turn:
            return
        self._sessions.transitions.end_turn(sequence, "failed", error=problem)
        self._advance(self._sessions, sequence)

    def _advance(self, sessions: Sessions[UpstreamSequence], sequence: UpstreamSequence) -> None:
        if sequence.turn is None:
            sessions.advance_if_idle(sequence)
        self._wakeup.set()

"""Generation of one response: the token log of the engine session is made equal to the prompt, a
turn runs, and its output is emitted as events once the response is accepted (stored). The response
always ends: with the status `failed` if there is an error at any point."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from continuo.engine import (
    EngineError,
    ModelText,
    OutputChunk,
    SessionDetached,
    SessionQuarantined,
    StaleEngineFence,
    TurnEnded,
    TurnFailed,
    TurnStream,
)
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.error_mapping import map_failure
from continuo.realtime.generation.logprobs import LogprobTracker
from continuo.realtime.generation.observation import ResponseObservation
from continuo.realtime.generation.output_items import OutputItems
from continuo.realtime.generation.output_parser import ChannelParser, ParsedChunk
from continuo.realtime.generation.prompt import Prompt
from continuo.realtime.protocol.events import ConversationEvent
from continuo.realtime.protocol.items import ItemStatus
from continuo.realtime.protocol.response import Response, ResponseError, ResponseStatus, Usage
from continuo.realtime.tenants.turn_slots import TurnSlot

log = logging.getLogger(__name__)

EmitEvent = Callable[[ConversationEvent], None]


class Generation:
    """A response that is being generated. `response` is its current state; when it has ended, its
    settings contain the seed that was used. `sampled_ids` are the token ids sampled so far."""

    def __init__(
        self,
        response: Response,
        engine_session: EngineSession,
        output: OutputItems,
        parser: ChannelParser,
        turn_slot: TurnSlot,
        on_interrupted: Callable[[], None] = lambda: None,
        logprobs: LogprobTracker | None = None,
    ) -> None:
        """Args:
        response: its initial state.
        engine_session: runs the turn: that of the conversation, or a fork for this response alone.
        output: the items of the response, to which the generation appends.
        parser: separates the text of the model into messages, reasoning and tool calls; of this
            response alone, because it keeps unfinished text.
        turn_slot: the slot that the turn waits for; the caller releases it when `run` has ended.
        on_interrupted: called when the engine that runs the turn is lost, or the server that
            computes for it, after the output received until then was emitted.
        logprobs: attaches log-probabilities to the output. None: none were requested.
        """
        self.response = response
        self.engine_session = engine_session
        self.sampled_ids: list[int] = []
        self._output = output
        self._parser = parser
        self.is_refused = False
        """Whether the response was not accepted: no event is emitted, its output is discarded."""
        self.turn_slot = turn_slot
        self._on_interrupted = on_interrupted
        self._reasoning_tokens = 0
        self._logprobs = logprobs
        self._is_cancelled = False
        self._current_turn: TurnStream | None = None
        self._observation = ResponseObservation(response.id)
        self._closing_events: list[ConversationEvent] = []

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    @property
    def is_between_items(self) -> bool:
        """Whether there are items, and none is in progress."""
        return bool(self._output.items) and self._output.items[-1].status != "in_progress"

    async def cancel(self) -> None:
        """Cancel generation: the turn ends within one engine step, and `run` returns soon after. A
        turn whose start is still in progress is cancelled as soon as it has started."""
        self._is_cancelled = True
        if self.turn_slot.is_waiting:
            self.turn_slot.release()
        if self._current_turn is not None:
            await self.engine_session.cancel_turn(self._current_turn)

    async def run(
        self,
        prompt: Prompt,
        emit: EmitEvent,
        accepted: asyncio.Future[bool] | None = None,
        resumed_ids: Sequence[int] | None = None,
    ) -> list[ConversationEvent]:
        """Generate until `response` is final. By then all events were emitted but the returned ones
        and the end of the response. Those are the last ones of a response that was cancelled or has
        failed, for after its end is stored: a gateway that took the session over before would
        generate on from there.

        The turn starts at once. `accepted`: a future that becomes True when the response is
        accepted, and then the output is emitted; if it becomes False, the output is discarded.
        None: already accepted. `resumed_ids`: the turn was started elsewhere and resumes after
        these ids; their events are emitted again. Raises StaleEngineFence."""
        try:
            ended = await self._run_turn(prompt, emit, accepted, resumed_ids)
        except StaleEngineFence:
            raise
        except EngineError as error:
            if await self._await_acceptance(accepted):
                self._fail(map_failure(error))
        except Exception:
            log.exception("response %s failed", self.response.id)
            if await self._await_acceptance(accepted):
                self._fail(ResponseError("server_error", "The server had a fault."))
        else:
            if await self._await_acceptance(accepted):
                self._finish(emit, ended)
        return self._closing_events

    async def _await_acceptance(self, accepted: asyncio.Future[bool] | None) -> bool:
        self.is_refused = accepted is not None and not await accepted
        return not self.is_refused

    async def _run_turn(
        self,
        prompt: Prompt,
        emit: EmitEvent,
        accepted: asyncio.Future[bool] | None,
        resumed_ids: Sequence[int] | None,
    ) -> TurnEnded | None:
        if self._is_cancelled or not await self.turn_slot.wait():
            return None
        if resumed_ids is not None:
            self._observation.resume_after(len(resumed_ids))
        spans, header, sampling = prompt.conversation.all_spans, prompt.header, prompt.sampling
        turn = await self.engine_session.start_turn(
            spans,
            header,
            sampling,
            self.response.id,
            resumed_ids,
            self._observation.traceparent,
        )
        self._current_turn = turn
        self._observation.start()
        if self._is_cancelled:
            await self.cancel()
        await self._await_acceptance(accepted)
        turn_ids: list[int] = []

        def consume_chunk(chunk: OutputChunk) -> None:
            turn_ids.extend(chunk.ids)
            self._observation.on_output(len(chunk.ids))
            if self.is_refused:
                return
            self.sampled_ids.extend(chunk.ids)
            if chunk.channel.kind == "reasoning":
                self._reasoning_tokens += len(chunk.ids)
            if self._logprobs is not None and chunk.channel.kind == "text":
                self._logprobs.add(chunk)
            self._emit_output(self._parser.push(chunk.channel, chunk.text), emit)

        await self._consume_turn(turn, consume_chunk)
        ended = turn.ended
        assert ended is not None, "a consumed turn has ended"
        self._observation.on_turn_ended(ended)
        kept = ended.length - prompt.length
        del self.sampled_ids[kept:]
        # A refused turn may have ended by itself before it was cancelled: its ids are in the log.
        self.engine_session.commit_turn(turn, turn_ids[:kept])
        return ended

    async def _consume_turn(
        self, turn: TurnStream, on_chunk: Callable[[OutputChunk], None]
    ) -> None:
        """Consume a turn to its end. Each time its engine is lost, the session is attached again,
        and the turn continues. Raises EngineError."""
        interrupted_at = -1

        def interrupt() -> None:
            nonlocal interrupted_at
            self._observation.interrupt()
            if turn.received != interrupted_at and not self.is_refused:
                self._on_interrupted()
            interrupted_at = turn.received

        while turn.ended is None:
            if (self._is_cancelled or self.is_refused) and not turn.has_ended:
                await self.engine_session.cancel_turn(turn, discard_output=self.is_refused)
            try:
                with contextlib.suppress(TurnFailed):  # `turn.ended` has the failure too
                    await turn.consume(on_chunk, interrupt)
            except SessionDetached:
                interrupt()
                with contextlib.suppress(SessionQuarantined):  # the turn has ended as failed
                    await self.engine_session.reattach_turn(turn)

    def end_as_lost(
        self,
        sampled_ids: Sequence[int],
        text: ModelText,
        emit: EmitEvent,
        *,
        starts_in_reasoning: bool,
    ) -> list[ConversationEvent]:
        """End a resumed response as failed, with the output of `sampled_ids`, because its prompt
        cannot be built again. Emits, and returns, as `run` does. `starts_in_reasoning`: as in
        `Sampling`."""
        self.sampled_ids.extend(sampled_ids)
        decoder = text.create_output_decoder(starts_in_reasoning=starts_in_reasoning)
        for segment in decoder.push(sampled_ids):
            for event in self._output.append(self._parser.push(segment.channel, segment.text)):
                emit(event)
        self._closing_events += self._output.append(self._parser.finish())
        message = "The response could not be resumed after a restart."
        self._fail(ResponseError("response_lost", message))
        return self._closing_events

    def _emit_output(self, chunks: Sequence[ParsedChunk], emit: EmitEvent) -> None:
        events = self._output.append(chunks)
        for event in events if self._logprobs is None else self._logprobs.attach(events):
            emit(event)

    def _fail(self, error: ResponseError) -> None:
        self._end(self._closing_events.append, "failed", error)

    def _finish(self, emit: EmitEvent, ended: TurnEnded | None) -> None:
        if ended is None or ended.reason in ("cancelled", "failed"):
            emit = self._closing_events.append
        self._emit_output(self._parser.finish(), emit)
        if ended is None:
            self.response = msgspec.structs.replace(self.response, usage=Usage())
            self._end(emit, "cancelled")
            return
        settings = self.response.settings
        sampling = msgspec.structs.replace(settings.sampling, seed=ended.seed)
        self.response = msgspec.structs.replace(
            self.response,
            settings=msgspec.structs.replace(settings, sampling=sampling),
            stop_string=ended.stop,
            usage=Usage(
                input_tokens=ended.prompt_tokens,
                cached_tokens=ended.cached_tokens,
                output_tokens=ended.output_tokens,
                queued_s=round(ended.queued_s, 6),
                prefill_s=round(ended.prefill_s, 6),
                model_s=round(ended.model_s, 6),
                residency=ended.residency,
                reasoning_tokens=self._reasoning_tokens,
                computed_tokens=ended.computed_tokens,
                prefilled_after_commit=ended.prefilled_after_commit,
            ),
        )
        match ended.reason:
            case "stop":
                self._end(emit, "completed")
            case "length":
                self._end(emit, "incomplete")
            case "cancelled":
                self._end(emit, "cancelled")
            case "failed":
                message = ended.error or "The model failed on this response."
                self._end(emit, "failed", ResponseError("turn_failed", message))

    def _end(
        self, emit: EmitEvent, status: ResponseStatus, error: ResponseError | None = None
    ) -> None:
        item_status: ItemStatus = "completed" if status == "completed" else "incomplete"
        needs_item = status in ("completed", "incomplete")
        for event in self._output.finish(item_status, needs_item=needs_item):
            emit(event)
        reasons = {"cancelled": "client_cancelled", "incomplete": "max_output_tokens"}
        self.response = msgspec.structs.replace(
            self.response,
            status=status,
            reason=reasons.get(status),
            error=error,
            items=self._output.items,
            logprobs={} if self._logprobs is None else self._logprobs.by_item,
        )
        self._observation.end(self.response, self.engine_session.session_id)

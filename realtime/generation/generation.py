"""How one answer is made: the strand is brought up to the prompt, a turn runs, its pieces are told
once the answer is accepted. Whatever goes wrong on the way, the answer ends, and says how."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from continuo.engine import (
    EngineError,
    EngineLost,
    ModelText,
    OutputChunk,
    StaleEngineFence,
    TurnEnded,
    TurnFailed,
    TurnStream,
)
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.output_items import OutputItems
from continuo.realtime.generation.output_parser import OutputParser
from continuo.realtime.generation.prompt import Prompt
from continuo.realtime.protocol.events import ConversationEvent
from continuo.realtime.protocol.items import ItemStatus
from continuo.realtime.protocol.response import Response, ResponseError, ResponseStatus, Usage

log = logging.getLogger(__name__)

EmitEvent = Callable[[ConversationEvent], None]


class Generation:
    """`answer` is what it is now, in the end with the seed it was drawn with; `sampled` the ids
    drawn for it."""

    def __init__(
        self,
        response: Response,
        engine_session: EngineSession,
        output: OutputItems,
        parser: OutputParser,
    ) -> None:
        self.response = response
        self.engine_session = engine_session
        self.sampled_ids: list[int] = []
        self._output = output
        self._parser = parser
        self.is_refused = False
        """Nobody was told of it, and nothing of it stays."""
        self.on_interrupted: Callable[[], None] = lambda: None
        """Called when what makes it is gone, and all before that has been told."""
        self._is_cancelled = False
        self._current_turn: TurnStream | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    async def cancel(self) -> None:
        """Stops it within a step; the run ends soon after. A turn that was asked for a moment ago
        is there before the word to stop it: the engine takes them in order."""
        self._is_cancelled = True
        if self._current_turn is not None:
            await self.engine_session.cancel_turn(self._current_turn)

    async def run(
        self,
        prompt: Prompt,
        emit: EmitEvent,
        accepted: asyncio.Future[bool] | None = None,
        resumed_ids: Sequence[int] | None = None,
    ) -> None:
        """Ends with `answer` final; all but its end has been told. The turn begins at once, and is
        heard of when it is `accepted`; or it goes on after the ids it has `said`, which are told
        again. Raises StaleFence."""
        try:
            ended = await self._run_turn(prompt, emit, accepted, resumed_ids)
        except StaleEngineFence:
            raise
        except EngineError as error:
            if isinstance(error, EngineLost):
                self.engine_session.invalidate()
            if await self._await_acceptance(accepted):
                self._end(emit, "failed", ResponseError(error.code, error.message))
        except Exception:
            log.exception("answer %s", self.response.id)
            self.engine_session.invalidate()
            if await self._await_acceptance(accepted):
                self._end(emit, "failed", ResponseError("server_error", "The server had a fault."))
        else:
            if await self._await_acceptance(accepted):
                self._finish(emit, ended)

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
        if self._is_cancelled:
            return None
        spans, header, sampling = prompt.conversation.all_spans, prompt.header, prompt.sampling
        if resumed_ids is None:
            turn = await self.engine_session.start_turn(spans, header, sampling, self.response.id)
        else:
            turn = await self.engine_session.resume_turn(
                spans, header, resumed_ids, sampling, self.response.id
            )
        self._current_turn = turn
        if self._is_cancelled:
            await self.engine_session.cancel_turn(turn)
        if not await self._await_acceptance(accepted):
            await self.engine_session.cancel_turn(turn, discard_output=True)
        if not self.is_refused:
            turn.set_on_interrupted(lambda: self.on_interrupted())
        drawn: list[int] = []

        def take(piece: OutputChunk) -> None:
            drawn.extend(piece.ids)
            if self.is_refused:
                return
            self.sampled_ids.extend(piece.ids)
            for told in self._output.append(self._parser.push(piece.text)):
                emit(told)

        with contextlib.suppress(TurnFailed):  # `ended` says so too
            await turn.consume(take)
        ended = turn.ended
        assert ended is not None, "a turn that stopped has ended"
        kept = ended.length - prompt.length
        del self.sampled_ids[kept:]
        self.engine_session.commit_turn(
            turn, drawn[:kept]
        )  # of a refused one too, if it ended by itself before
        return ended

    def end_as_lost(self, sampled_ids: Sequence[int], text: ModelText, emit: EmitEvent) -> None:
        """It ends with what it had said: what it answered is not there any more."""
        self.sampled_ids.extend(sampled_ids)
        words = text.create_detokenizer().push(sampled_ids)
        for told in self._output.append([*self._parser.push(words), *self._parser.finish()]):
            emit(told)
        lost = ResponseError("answer_lost", "The answer could not be gone on with after a restart.")
        self._end(emit, "failed", lost)

    def _finish(self, emit: EmitEvent, ended: TurnEnded | None) -> None:
        for said in self._output.append(self._parser.finish()):
            emit(said)
        if ended is None:
            self.response = msgspec.structs.replace(self.response, usage=Usage())
            self._end(emit, "cancelled")
            return
        settings = self.response.settings
        sampling = msgspec.structs.replace(settings.sampling, seed=ended.seed)
        self.response = msgspec.structs.replace(
            self.response,
            settings=msgspec.structs.replace(settings, sampling=sampling),
            usage=Usage(
                input_tokens=ended.prompt_tokens,
                cached_tokens=ended.cached_tokens,
                output_tokens=ended.output_tokens,
                queued_s=round(ended.queued_s, 6),
                prefill_s=round(ended.prefill_s, 6),
                model_s=round(ended.model_s, 6),
                residency=ended.residency,
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
                words = ended.error or "The model failed on this answer."
                self._end(emit, "failed", ResponseError("turn_failed", words))

    def _end(
        self, emit: EmitEvent, status: ResponseStatus, error: ResponseError | None = None
    ) -> None:
        item_status: ItemStatus = "completed" if status == "completed" else "incomplete"
        whole = status in ("completed", "incomplete")
        for said in self._output.finish(item_status, needs_item=whole):
            emit(said)
        reasons = {"cancelled": "client_cancelled", "incomplete": "max_output_tokens"}
        self.response = msgspec.structs.replace(
            self.response,
            status=status,
            reason=reasons.get(status),
            error=error,
            items=self._output.items,
        )

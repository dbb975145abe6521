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
    Piece,
    StaleFence,
    Text,
    Turn,
    TurnEnded,
    TurnFailed,
)
from continuo.realtime.generation.engine_session import Strand
from continuo.realtime.generation.output_items import Output
from continuo.realtime.generation.output_parser import Reader
from continuo.realtime.generation.prompt import Prompt
from continuo.realtime.protocol.events import Tell
from continuo.realtime.protocol.items import ItemStatus
from continuo.realtime.protocol.response import Answer, AnswerError, AnswerStatus, Usage

log = logging.getLogger(__name__)

Teller = Callable[[Tell], None]


class Answering:
    """`answer` is what it is now, in the end with the seed it was drawn with; `sampled` the ids
    drawn for it."""

    def __init__(self, answer: Answer, strand: Strand, output: Output, reader: Reader) -> None:
        self.answer = answer
        self.strand = strand
        self.sampled: list[int] = []
        self._output = output
        self._reader = reader
        self.refused = False
        """Nobody was told of it, and nothing of it stays."""
        self.on_interrupted: Callable[[], None] = lambda: None
        """Called when what makes it is gone, and all before that has been told."""
        self._cancelled = False
        self._made: Turn | None = None

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    async def cancel(self) -> None:
        """Stops it within a step; the run ends soon after. A turn that was asked for a moment ago
        is there before the word to stop it: the engine takes them in order."""
        self._cancelled = True
        if self._made is not None:
            await self.strand.cancel(self._made)

    async def run(
        self,
        prompt: Prompt,
        tell: Teller,
        accepted: asyncio.Future[bool] | None = None,
        said: Sequence[int] | None = None,
    ) -> None:
        """Ends with `answer` final; all but its end has been told. The turn begins at once, and is
        heard of when it is `accepted`; or it goes on after the ids it has `said`, which are told
        again. Raises StaleFence."""
        try:
            ended = await self._turn(prompt, tell, accepted, said)
        except StaleFence:
            raise
        except EngineError as error:
            if isinstance(error, EngineLost):
                self.strand.forget()
            if await self._heard(accepted):
                self._end(tell, "failed", AnswerError(error.code, error.message))
        except Exception:
            log.exception("answer %s", self.answer.id)
            self.strand.forget()
            if await self._heard(accepted):
                self._end(tell, "failed", AnswerError("server_error", "The server had a fault."))
        else:
            if await self._heard(accepted):
                self._finish(tell, ended)

    async def _heard(self, accepted: asyncio.Future[bool] | None) -> bool:
        self.refused = accepted is not None and not await accepted
        return not self.refused

    async def _turn(
        self,
        prompt: Prompt,
        tell: Teller,
        accepted: asyncio.Future[bool] | None,
        said: Sequence[int] | None,
    ) -> TurnEnded | None:
        if self._cancelled:
            return None
        spans, header, sampling = prompt.conversation.all_spans, prompt.header, prompt.sampling
        if said is None:
            turn = await self.strand.answer(spans, header, sampling, self.answer.id)
        else:
            turn = await self.strand.go_on(spans, header, said, sampling, self.answer.id)
        self._made = turn
        if self._cancelled:
            await self.strand.cancel(turn)
        if not await self._heard(accepted):
            await self.strand.cancel(turn, drop=True)
        if not self.refused:
            turn.when_interrupted(lambda: self.on_interrupted())
        drawn: list[int] = []

        def take(piece: Piece) -> None:
            drawn.extend(piece.ids)
            if self.refused:
                return
            self.sampled.extend(piece.ids)
            for told in self._output.take(self._reader.push(piece.text)):
                tell(told)

        with contextlib.suppress(TurnFailed):  # `ended` says so too
            await turn.follow(take)
        ended = turn.ended
        assert ended is not None, "a turn that stopped has ended"
        kept = ended.length - prompt.length
        del self.sampled[kept:]
        self.strand.drawn(turn, drawn[:kept])  # of a refused one too, if it ended by itself before
        return ended

    def break_off(self, said: Sequence[int], text: Text, tell: Teller) -> None:
        """It ends with what it had said: what it answered is not there any more."""
        self.sampled.extend(said)
        words = text.detokenizer().push(said)
        for told in self._output.take([*self._reader.push(words), *self._reader.end()]):
            tell(told)
        lost = AnswerError("answer_lost", "The answer could not be gone on with after a restart.")
        self._end(tell, "failed", lost)

    def _finish(self, tell: Teller, ended: TurnEnded | None) -> None:
        for said in self._output.take(self._reader.end()):
            tell(said)
        if ended is None:
            self.answer = msgspec.structs.replace(self.answer, usage=Usage())
            self._end(tell, "cancelled")
            return
        settings = self.answer.settings
        sampling = msgspec.structs.replace(settings.sampling, seed=ended.seed)
        self.answer = msgspec.structs.replace(
            self.answer,
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
                self._end(tell, "completed")
            case "length":
                self._end(tell, "incomplete")
            case "cancelled":
                self._end(tell, "cancelled")
            case "failed":
                words = ended.error or "The model failed on this answer."
                self._end(tell, "failed", AnswerError("turn_failed", words))

    def _end(self, tell: Teller, status: AnswerStatus, error: AnswerError | None = None) -> None:
        item_status: ItemStatus = "completed" if status == "completed" else "incomplete"
        whole = status in ("completed", "incomplete")
        for said in self._output.finish(item_status, whole=whole):
            tell(said)
        reasons = {"cancelled": "client_cancelled", "incomplete": "max_output_tokens"}
        self.answer = msgspec.structs.replace(
            self.answer,
            status=status,
            reason=reasons.get(status),
            error=error,
            items=self._output.items,
        )

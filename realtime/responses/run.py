"""Making: one answer on its line, told to its recording."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import msgspec

from continuo.engine import EngineError
from continuo.realtime.generation.generation import Answering, Teller
from continuo.realtime.generation.output_items import Output
from continuo.realtime.generation.prompt import Prompt
from continuo.realtime.generation.tool_calls import reader_for
from continuo.realtime.ids import fresh
from continuo.realtime.protocol.commands import GoOn
from continuo.realtime.protocol.events import (
    AnswerStarted,
    ArgumentsDelta,
    OutputEnded,
    OutputStarted,
    Tell,
    TextDelta,
    Told,
)
from continuo.realtime.protocol.items import CallItem, Item
from continuo.realtime.protocol.response import Answer, Usage
from continuo.realtime.responses.continuations import Line
from continuo.realtime.responses.event_stream import Recording


class Visitor(msgspec.Struct, frozen=True):
    """Who asks. `connection` names the one connection that may go on from what is not kept."""

    tenant: str
    connection: str | None = None


class Making:
    """`recording` begins with AnswerStarted; all but the end is told by `make`."""

    def __init__(
        self, ask: GoOn, visitor: Visitor, answer: Answer, prompt: Prompt, line: Line
    ) -> None:
        self.id = answer.id
        self.ask = ask
        self.visitor = visitor
        self.recording = Recording([AnswerStarted(answer)])
        self.prompt = prompt
        self.line = line
        self.steered = False
        """Cancelled because more was said to it."""
        self.ended = asyncio.Event()
        """One can go on from it."""
        self._answering: Answering | None = None

    @property
    def calls(self) -> bool:
        """Whether the model has begun to call a tool."""
        return any(
            isinstance(told, OutputStarted) and isinstance(told.item, CallItem)
            for told in self.recording.told
        )

    async def cancel(self) -> None:
        """It ends within a step. Harmless if it has."""
        if self._answering is not None:
            with contextlib.suppress(EngineError):
                await self._answering.cancel()

    async def make(self) -> tuple[Answer, list[int]]:
        """The answer as it ended, and the ids that were drawn for it."""
        if not self.ask.generate:
            return await self._take_in(), []
        recording = self.recording
        return await self._make(lambda tell: recording.tell(_told(tell)))

    async def _make(self, tell: Teller) -> tuple[Answer, list[int]]:
        answer, prompt = self.recording.answer, self.prompt
        reader = reader_for(answer.settings, prompt.conversation.template)
        answering = Answering(answer, self.line.strand, Output(answer, _nowhere, fresh), reader)
        self._answering = answering
        await answering.run(prompt, tell)
        answer = msgspec.structs.replace(answering.answer, ended_s=int(time.time()))
        if self.steered and answer.status == "cancelled":
            answer = msgspec.structs.replace(answer, reason="steered")
        return answer, answering.sampled

    async def _take_in(self) -> Answer:
        """The prompt is prefilled by an answer of one id, which nobody hears and nothing keeps: the
        engine says what of it was in KV before."""
        if not self.prompt.length:
            now = int(time.time())
            return msgspec.structs.replace(
                self.recording.answer, status="completed", usage=Usage(), ended_s=now
            )
        answer, _ = await self._make(_unheard)
        if answer.status not in ("completed", "incomplete"):
            return msgspec.structs.replace(answer, items=())
        try:
            await self.line.strand.sync(self.prompt.conversation.all_spans)
        except EngineError:
            self.line.strand.forget()
        assert answer.usage is not None, "a turn that has ended was counted"
        return msgspec.structs.replace(
            answer,
            status="completed",
            reason=None,
            items=(),
            usage=msgspec.structs.replace(answer.usage, output_tokens=0),
        )


_OF_AN_ANSWER = OutputStarted | TextDelta | ArgumentsDelta | OutputEnded


def _told(tell: Tell) -> Told:
    assert isinstance(tell, _OF_AN_ANSWER), "an answer tells of itself alone"
    return tell


def _unheard(tell: Tell) -> None:
    pass


def _nowhere(items: Sequence[Item]) -> str | None:
    return None

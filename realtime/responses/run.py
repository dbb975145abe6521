"""Making: one answer on its line, told to its recording."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import msgspec

from continuo.engine import EngineError
from continuo.realtime.generation.generation import EmitEvent, Generation
from continuo.realtime.generation.output_items import OutputItems
from continuo.realtime.generation.prompt import Prompt
from continuo.realtime.generation.tool_calls import make_output_parser
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    ConversationEvent,
    OutputItemEnded,
    OutputItemStarted,
    ResponseEvent,
    ResponseStarted,
    TextDelta,
)
from continuo.realtime.protocol.items import FunctionCallItem, Item
from continuo.realtime.protocol.response import Response, Usage
from continuo.realtime.responses.continuations import Branch
from continuo.realtime.responses.event_stream import EventStream


class Requester(msgspec.Struct, frozen=True):
    """Who asks. `connection` names the one connection that may go on from what is not kept."""

    tenant: str
    connection: str | None = None


class ResponseRun:
    """`recording` begins with AnswerStarted; all but the end is told by `make`."""

    def __init__(
        self,
        command: CreateResponse,
        requester: Requester,
        response: Response,
        prompt: Prompt,
        branch: Branch,
    ) -> None:
        self.id = response.id
        self.command = command
        self.requester = requester
        self.event_stream = EventStream([ResponseStarted(response)])
        self.prompt = prompt
        self.branch = branch
        self.is_steered = False
        """Cancelled because more was said to it."""
        self.ended = asyncio.Event()
        """One can go on from it."""
        self._generation: Generation | None = None

    @property
    def has_tool_call(self) -> bool:
        """Whether the model has begun to call a tool."""
        return any(
            isinstance(told, OutputItemStarted) and isinstance(told.item, FunctionCallItem)
            for told in self.event_stream.events
        )

    async def cancel(self) -> None:
        """It ends within a step. Harmless if it has."""
        if self._generation is not None:
            with contextlib.suppress(EngineError):
                await self._generation.cancel()

    async def run(self) -> tuple[Response, list[int]]:
        """The answer as it ended, and the ids that were drawn for it."""
        if not self.command.generate:
            return await self._prefill(), []
        recording = self.event_stream
        return await self._generate(lambda tell: recording.append(_as_response_event(tell)))

    async def _generate(self, emit: EmitEvent) -> tuple[Response, list[int]]:
        answer, prompt = self.event_stream.response, self.prompt
        reader = make_output_parser(answer.settings, prompt.conversation.template)
        answering = Generation(
            answer,
            self.branch.engine_session,
            OutputItems(answer, _no_placement, generate_id),
            reader,
        )
        self._generation = answering
        await answering.run(prompt, emit)
        answer = msgspec.structs.replace(answering.response, ended_s=int(time.time()))
        if self.is_steered and answer.status == "cancelled":
            answer = msgspec.structs.replace(answer, reason="steered")
        return answer, answering.sampled_ids

    async def _prefill(self) -> Response:
        """The prompt is prefilled by an answer of one id, which nobody hears and nothing keeps: the
        engine says what of it was in KV before."""
        if not self.prompt.length:
            now = int(time.time())
            return msgspec.structs.replace(
                self.event_stream.response, status="completed", usage=Usage(), ended_s=now
            )
        answer, _ = await self._generate(_discard)
        if answer.status not in ("completed", "incomplete"):
            return msgspec.structs.replace(answer, items=())
        try:
            await self.branch.engine_session.sync(self.prompt.conversation.all_spans)
        except EngineError:
            self.branch.engine_session.invalidate()
        assert answer.usage is not None, "a turn that has ended was counted"
        return msgspec.structs.replace(
            answer,
            status="completed",
            reason=None,
            items=(),
            usage=msgspec.structs.replace(answer.usage, output_tokens=0),
        )


_RESPONSE_EVENTS = OutputItemStarted | TextDelta | ArgumentsDelta | OutputItemEnded


def _as_response_event(event: ConversationEvent) -> ResponseEvent:
    assert isinstance(event, _RESPONSE_EVENTS), "an answer tells of itself alone"
    return event


def _discard(event: ConversationEvent) -> None:
    pass


def _no_placement(items: Sequence[Item]) -> str | None:
    return None

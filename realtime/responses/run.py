"""Response run: generates one response on its branch, into its event stream."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec

from continuo.engine import EngineError
from continuo.realtime.generation.generation import EmitEvent, Generation
from continuo.realtime.generation.logprobs import LogprobTracker
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
    ReasoningDelta,
    ResponseEvent,
    ResponseStarted,
    TextDelta,
)
from continuo.realtime.protocol.items import FunctionCallItem, Item
from continuo.realtime.protocol.response import Response, Usage
from continuo.realtime.responses.continuations import Branch
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.tenants.turn_slots import TurnSlot


class Requester(msgspec.Struct, frozen=True):
    """The sender of a request. `connection`: the only connection that may continue the response if
    it is not stored."""

    tenant: str
    connection: str | None = None


class ResponseRun:
    """A response while it is generated.

    `event_stream` begins with ResponseStarted. `run` appends all events but ResponseEnded.
    """

    def __init__(
        self,
        command: CreateResponse,
        requester: Requester,
        response: Response,
        prompt: Prompt,
        branch: Branch,
        turn_slot: TurnSlot,
        on_abandoned: Callable[[], None],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        """Args:
        command: as requested, except that its input is the new items of the conversation.
        requester: the only tenant that may read or cancel the response, and its connection.
        response: its initial state, sent in ResponseStarted.
        prompt: conversation that the model reads, and the sampling parameters.
        branch: has the engine session; busy until the response has ended.
        turn_slot: the slot that the turn waits for; ResponseService releases it.
        on_abandoned: called when the last reader of the events has left before the end.
        token_bytes: returns the bytes of a token id, for log-probabilities.
        """
        self.id = response.id
        self.command = command
        self.requester = requester
        self.event_stream = EventStream([ResponseStarted(response)], on_abandoned)
        self.prompt = prompt
        self.branch = branch
        self.turn_slot = turn_slot
        self.is_steered = False
        """Whether steering has cancelled the response, which then ends with the reason
        `steered`."""
        self.ended = asyncio.Event()
        """Set when the response has ended and can be continued."""
        self._token_bytes = token_bytes
        self._generation: Generation | None = None

    @property
    def has_tool_call(self) -> bool:
        """Whether the model has begun to call a tool."""
        return any(
            isinstance(event, OutputItemStarted) and isinstance(event.item, FunctionCallItem)
            for event in self.event_stream.events
        )

    async def cancel(self) -> None:
        """Cancel generation, which ends within one step of the engine; harmless if it has ended."""
        if self._generation is not None:
            with contextlib.suppress(EngineError):
                await self._generation.cancel()

    async def run(self) -> tuple[Response, list[int]]:
        """Generate the response. Returns its final state, and the token ids sampled for it."""
        if not self.command.generate:
            return await self._prefill(), []
        event_stream = self.event_stream
        return await self._generate(lambda event: event_stream.append(_as_response_event(event)))

    async def _generate(self, emit: EmitEvent) -> tuple[Response, list[int]]:
        response, prompt = self.event_stream.response, self.prompt
        parser = make_output_parser(response.settings, prompt.conversation.template)
        generation = Generation(
            response,
            self.branch.engine_session,
            OutputItems(response, _no_placement, generate_id),
            parser,
            self.turn_slot,
            logprobs=self._make_logprob_tracker(),
        )
        self._generation = generation
        # At once: no other gateway generates this response on.
        for event in await generation.run(prompt, emit):
            emit(event)
        response = msgspec.structs.replace(generation.response, ended_s=int(time.time()))
        if self.is_steered and response.status == "cancelled":
            response = msgspec.structs.replace(response, reason="steered")
        return response, generation.sampled_ids

    def _make_logprob_tracker(self) -> LogprobTracker | None:
        sampling = self.prompt.sampling
        if sampling.logprobs is None:
            return None
        return LogprobTracker(self._token_bytes, () if sampling.ignore_eos else sampling.stop_ids)

    async def _prefill(self) -> Response:
        """`generate: false`: prefill the prompt by sampling and discarding one token.

        Returns the response without output; its usage says how many input tokens were already in
        KV.
        """
        if not self.prompt.length:
            now = int(time.time())
            return msgspec.structs.replace(
                self.event_stream.response, status="completed", usage=Usage(), ended_s=now
            )
        response, _ = await self._generate(_discard)
        if response.status not in ("completed", "incomplete"):
            return msgspec.structs.replace(response, items=())
        with contextlib.suppress(EngineError):
            await self.branch.engine_session.sync(self.prompt.conversation.all_spans)
        assert response.usage is not None, "a turn that has ended has its usage"
        return msgspec.structs.replace(
            response,
            status="completed",
            reason=None,
            items=(),
            usage=msgspec.structs.replace(response.usage, output_tokens=0),
        )


_RESPONSE_EVENTS = OutputItemStarted | TextDelta | ReasoningDelta | ArgumentsDelta | OutputItemEnded


def _as_response_event(event: ConversationEvent) -> ResponseEvent:
    assert isinstance(event, _RESPONSE_EVENTS), "a response emits only events of its own"
    return event


def _discard(event: ConversationEvent) -> None:
    pass


def _no_placement(_items: Sequence[Item]) -> str | None:
    return None

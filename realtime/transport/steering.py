"""Steering: input added to a response while it is generated.

The response is cancelled, and a new response, its successor, continues it with the added input. A
response that has called tools is not cancelled; the input waits for the client's request with the
tool outputs.
"""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.events import ResponseSteered
from continuo.realtime.protocol.items import FunctionCallItem, Item
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.responses_api import (
    Encoder,
    ResponseSteer,
    ServerEvent,
    decode_input,
    decode_steering_input,
)
from continuo.realtime.responses.run import Requester, ResponseRun
from continuo.realtime.responses.service import ResponseService

Send = Callable[[ServerEvent], Awaitable[None]]


class PendingSteer(msgspec.Struct, frozen=True):
    """Accepted steering input that is not part of a successor yet. `raw_input`: the input as the
    client sent it."""

    id: str
    items: tuple[Item, ...]
    raw_input: msgspec.Raw


class Steering:
    """The steering of one connection. `runs`: its active responses, by id."""

    def __init__(
        self,
        responses: ResponseService,
        requester: Requester,
        runs: Mapping[str, ResponseRun],
        send: Send,
    ) -> None:
        self._responses = responses
        self._requester = requester
        self._runs = runs
        self._send = send
        self._pending: dict[str, list[PendingSteer]] = {}
        """Steering input that no successor contains yet, by the id of the steered response."""

    def pending_input(self, response_id: str | None) -> tuple[Item, ...]:
        """Return the pending input of the response `response_id`, to put into a response that
        continues it. Returns no items for None."""
        pending = self._pending.get(response_id or "", ())
        return tuple(item for steer in pending for item in steer.items)

    def clear(self, response_id: str | None) -> None:
        """Remove the pending input of the response `response_id`, because a response that continues
        it now contains that input. Does nothing for None."""
        self._pending.pop(response_id or "", None)

    async def handle(self, event: ResponseSteer) -> None:
        """Accept steering input, or refuse it, and emit the event for that. Accepted input cancels
        the response, unless the response has called a tool, or only prefills its prompt (`generate:
        false`)."""
        response_id = event.previous_response_id
        try:
            run, items = self._check(event)
        except Refusal as refusal:
            await self._send(Encoder().encode_steer_failed(response_id, event.input, refusal))
            return
        steer = PendingSteer(generate_id("steer"), items, event.input)
        self._pending.setdefault(response_id, []).append(steer)
        run.event_stream.append(ResponseSteered(response_id, steer.id))
        if not run.has_tool_call and run.command.generate:
            run.is_steered = True
            await run.cancel()

    async def start_successor(self, run: ResponseRun, encoder: Encoder) -> ResponseRun | None:
        """Start the successor of a response that has ended. Returns None if the response was not
        steered, if the client must send tool outputs first, or if the successor is refused."""
        steers, response = self._pending.get(run.id), run.event_stream.response
        if not steers:
            return None
        pending_calls = [
            item
            for item in response.items
            if isinstance(item, FunctionCallItem) and item.status == "completed"
        ]
        if pending_calls:
            for steer in steers:
                await self._send(encoder.encode_steer_pending(steer.id, response.id, pending_calls))
            return None
        try:
            successor = await self._create_successor(run, response)
        except Refusal as refusal:
            for steer in steers:
                await self._send(
                    encoder.encode_steer_failed(response.id, steer.raw_input, refusal, steer.id)
                )
            successor = None
        self.clear(response.id)
        return successor

    async def _create_successor(self, run: ResponseRun, response: Response) -> ResponseRun:
        """Create the response that continues a steered one. Raises Refusal."""
        if response.status == "failed" or response.reason == "client_cancelled":
            raise Refusal("The response has failed or was cancelled.", code="response_not_active")
        pending = self.pending_input(response.id)
        command = msgspec.structs.replace(
            run.command, previous_response_id=response.id, input=pending
        )
        try:
            return await self._responses.create(command, self._requester)
        except Refusal as refusal:
            raise Refusal(refusal.message, code="successor_creation_failed") from refusal

    def _check(self, event: ResponseSteer) -> tuple[ResponseRun, tuple[Item, ...]]:
        """Return the response to steer and the decoded input. Raises Refusal if the response has
        ended or is unknown, if the input is invalid, or if too much input is pending."""
        response_id = event.previous_response_id
        run = self._runs.get(response_id)
        if run is None or run.event_stream.is_ended:
            requester = self._requester
            if run or self._responses.continuations.find(
                response_id, requester.tenant, requester.connection
            ):
                raise Refusal(
                    f"Response '{response_id}' has been completed: continue it with "
                    "response.create.",
                    code="response_already_completed",
                )
            raise Refusal(
                f"Response with id '{response_id}' is not on this connection.",
                code="response_not_found",
            )
        if run.command.conversation_id is not None:
            raise Refusal(
                "A response of a conversation cannot be steered: cancel it, and create another.",
                code="steering_not_supported",
            )
        limit = self._responses.limits.pending_steers_max
        if sum(map(len, self._pending.values())) >= limit:
            raise Refusal(
                f"{limit} steering inputs are pending on this connection, which is the limit.",
                code="too_many_pending_steers",
            )
        self._check_bytes(event)
        try:
            return run, decode_steering_input(decode_input(event.input), generate_id)
        except Refusal as refusal:
            raise Refusal(refusal.message, code="invalid_input") from refusal

    def _check_bytes(self, event: ResponseSteer) -> None:
        """Raise Refusal if, with this event, too many bytes of input would be pending."""
        limit = self._responses.limits.waiting_response_chars_max
        pending = [steer.raw_input for steers in self._pending.values() for steer in steers]
        size = sum(memoryview(given).nbytes for given in (*pending, event.input))
        if size > limit:
            raise Refusal(
                f"Steering inputs of {size:,} bytes would be pending on this connection; the "
                f"limit is {limit:,} bytes.",
                code="too_many_pending_steers",
            )

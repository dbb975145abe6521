"""Steering: more is said to a response while it is made. It ends where nothing is torn apart, and a
successor goes on from it with what was said; or, if it has called tools, with what they give."""

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
    """Accepted, and not yet part of a response. `given` is the input as it came."""

    id: str
    items: tuple[Item, ...]
    raw_input: msgspec.Raw


class Steering:
    """Of one connection; `running` are its responses."""

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
        """By the response it was said to."""

    def pending_input(self, response_id: str | None) -> tuple[Item, ...]:
        """What waits for who goes on from this response."""
        waiting = self._pending.get(response_id or "", ())
        return tuple(item for steer in waiting for item in steer.items)

    def clear(self, response_id: str | None) -> None:
        """It is part of a response now."""
        self._pending.pop(response_id or "", None)

    async def handle(self, event: ResponseSteer) -> None:
        """Answered by `accepted` or `failed`."""
        answer_id = event.previous_response_id
        try:
            making, items = self._check(event)
        except Refusal as refusal:
            await self._send(Encoder().encode_steer_failed(answer_id, event.input, refusal))
            return
        steer = PendingSteer(generate_id("steer"), items, event.input)
        self._pending.setdefault(answer_id, []).append(steer)
        making.event_stream.append(ResponseSteered(answer_id, steer.id))
        if not making.has_tool_call and making.command.generate:
            making.is_steered = True
            await making.cancel()

    async def start_successor(self, run: ResponseRun, encoder: Encoder) -> ResponseRun | None:
        """Of a response that has ended: its successor, if more was said to it."""
        steers, answer = self._pending.get(run.id), run.event_stream.response
        if not steers:
            return None
        owed = [
            item
            for item in answer.items
            if isinstance(item, FunctionCallItem) and item.status == "completed"
        ]
        if owed:
            for steer in steers:
                await self._send(encoder.encode_steer_pending(steer.id, answer.id, owed))
            return None
        try:
            successor = await self._create_successor(run, answer)
        except Refusal as refusal:
            for steer in steers:
                await self._send(
                    encoder.encode_steer_failed(answer.id, steer.raw_input, refusal, steer.id)
                )
            successor = None
        self.clear(answer.id)
        return successor

    async def _create_successor(self, run: ResponseRun, response: Response) -> ResponseRun:
        """Raises Refusal."""
        if response.status == "failed" or response.reason == "client_cancelled":
            raise Refusal("The response has ended otherwise.", code="response_not_active")
        input = self.pending_input(response.id)
        ask = msgspec.structs.replace(run.command, previous_response_id=response.id, input=input)
        try:
            return await self._responses.create(ask, self._requester)
        except Refusal as refusal:
            raise Refusal(refusal.message, code="successor_creation_failed") from refusal

    def _check(self, event: ResponseSteer) -> tuple[ResponseRun, tuple[Item, ...]]:
        """Raises Refusal."""
        answer_id = event.previous_response_id
        making = self._runs.get(answer_id)
        if making is None or making.event_stream.is_ended:
            visitor = self._requester
            if making or self._responses.continuations.find(
                answer_id, visitor.tenant, visitor.connection
            ):
                raise Refusal(
                    f"Response '{answer_id}' has been completed: go on from it with "
                    "response.create.",
                    code="response_already_completed",
                )
            raise Refusal(
                f"Response with id '{answer_id}' is not on this connection.",
                code="response_not_found",
            )
        limit = self._responses.limits.pending_steers_max
        if sum(map(len, self._pending.values())) >= limit:
            raise Refusal(
                f"{limit} steering inputs wait on this connection, which is the most.",
                code="too_many_pending_steers",
            )
        self._check_bytes(event)
        try:
            return making, decode_steering_input(decode_input(event.input), generate_id)
        except Refusal as refusal:
            raise Refusal(refusal.message, code="invalid_input") from refusal

    def _check_bytes(self, event: ResponseSteer) -> None:
        """Raises Refusal when too much would wait."""
        limit = self._responses.limits.waiting_response_chars_max
        waiting = [steer.raw_input for steers in self._pending.values() for steer in steers]
        size = sum(memoryview(given).nbytes for given in (*waiting, event.input))
        if size > limit:
            raise Refusal(
                f"Steering inputs of {size:,} bytes would wait on this connection; the limit is "
                f"{limit:,} bytes.",
                code="too_many_pending_steers",
            )

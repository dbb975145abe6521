"""Steering: more is said to a response while it is made. It ends where nothing is torn apart, and a
successor goes on from it with what was said; or, if it has called tools, with what they give."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import fresh
from continuo.realtime.protocol.events import Steered as ResponseSteered
from continuo.realtime.protocol.items import CallItem, Item
from continuo.realtime.protocol.response import Answer
from continuo.realtime.protocol.responses_api import (
    ServerEvent,
    Steer,
    Voice,
    decode_input,
    steering,
)
from continuo.realtime.responses.run import Making, Visitor
from continuo.realtime.responses.service import Responses

Send = Callable[[ServerEvent], Awaitable[None]]


class Steered(msgspec.Struct, frozen=True):
    """Accepted, and not yet part of a response. `given` is the input as it came."""

    id: str
    items: tuple[Item, ...]
    given: msgspec.Raw


class Steering:
    """Of one connection; `running` are its responses."""

    def __init__(
        self, responses: Responses, visitor: Visitor, running: Mapping[str, Making], send: Send
    ) -> None:
        self._responses = responses
        self._visitor = visitor
        self._running = running
        self._send = send
        self._waiting: dict[str, list[Steered]] = {}
        """By the response it was said to."""

    def said_to(self, previous: str | None) -> tuple[Item, ...]:
        """What waits for who goes on from this response."""
        waiting = self._waiting.get(previous or "", ())
        return tuple(item for steer in waiting for item in steer.items)

    def used(self, previous: str | None) -> None:
        """It is part of a response now."""
        self._waiting.pop(previous or "", None)

    async def take(self, event: Steer) -> None:
        """Answered by `accepted` or `failed`."""
        answer_id = event.previous_response_id
        try:
            making, items = self._check(event)
        except Refusal as refusal:
            await self._send(Voice().steer_failed(answer_id, event.input, refusal))
            return
        steer = Steered(fresh("steer"), items, event.input)
        self._waiting.setdefault(answer_id, []).append(steer)
        making.recording.tell(ResponseSteered(answer_id, steer.id))
        if not making.calls and making.ask.generate:
            making.steered = True
            await making.cancel()

    async def follow_up(self, making: Making, voice: Voice) -> Making | None:
        """Of a response that has ended: its successor, if more was said to it."""
        steers, answer = self._waiting.get(making.id), making.recording.answer
        if not steers:
            return None
        owed = [
            item
            for item in answer.items
            if isinstance(item, CallItem) and item.status == "completed"
        ]
        if owed:
            for steer in steers:
                await self._send(voice.pending(steer.id, answer.id, owed))
            return None
        try:
            successor = await self._succeed(making, answer)
        except Refusal as refusal:
            for steer in steers:
                await self._send(voice.steer_failed(answer.id, steer.given, refusal, steer.id))
            successor = None
        self.used(answer.id)
        return successor

    async def _succeed(self, making: Making, answer: Answer) -> Making:
        """Raises Refusal."""
        if answer.status == "failed" or answer.reason == "client_cancelled":
            raise Refusal("The response has ended otherwise.", code="response_not_active")
        input = self.said_to(answer.id)
        ask = msgspec.structs.replace(making.ask, previous=answer.id, input=input)
        try:
            return await self._responses.begin(ask, self._visitor)
        except Refusal as refusal:
            raise Refusal(refusal.message, code="successor_creation_failed") from refusal

    def _check(self, event: Steer) -> tuple[Making, tuple[Item, ...]]:
        """Raises Refusal."""
        answer_id = event.previous_response_id
        making = self._running.get(answer_id)
        if making is None or making.recording.ended:
            visitor = self._visitor
            if making or self._responses.lineage.find(
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
        limit = self._responses.limits.steers_max
        if sum(map(len, self._waiting.values())) >= limit:
            raise Refusal(
                f"{limit} steering inputs wait on this connection, which is the most.",
                code="too_many_pending_steers",
            )
        self._check_bytes(event)
        try:
            return making, steering(decode_input(event.input), fresh)
        except Refusal as refusal:
            raise Refusal(refusal.message, code="invalid_input") from refusal

    def _check_bytes(self, event: Steer) -> None:
        """Raises Refusal when too much would wait."""
        limit = self._responses.limits.waiting_response_chars_max
        waiting = [steer.given for steers in self._waiting.values() for steer in steers]
        size = sum(memoryview(given).nbytes for given in (*waiting, event.input))
        if size > limit:
            raise Refusal(
                f"Steering inputs of {size:,} bytes would wait on this connection; the limit is "
                f"{limit:,} bytes.",
                code="too_many_pending_steers",
            )

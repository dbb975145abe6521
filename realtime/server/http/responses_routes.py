"""The Responses API.

    WS     /v1/responses                 responses in lanes
    POST   /v1/responses                 one response: JSON, or events (`stream`)
    GET    /v1/responses/ID              a stored one, or one that is being made; `stream`,
                                         `starting_after` for its events behind a number
    DELETE /v1/responses/ID
    POST   /v1/responses/ID/cancel

A response is its tenant's: somebody else's id is answered like an unknown one.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import fresh
from continuo.realtime.protocol.responses_api import (
    Voice,
    decode_body,
    encode_sse,
    hear,
    response_out,
)
from continuo.realtime.responses.event_stream import Recording
from continuo.realtime.responses.run import Visitor
from continuo.realtime.responses.service import Responses
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Gate
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.served_model import Served
from continuo.realtime.server.http.sse import EventStream, HungUp, unless_gone
from continuo.realtime.transport import StarletteSocket
from continuo.realtime.transport.responses_connection import ResponsesConnection


class ResponseRoutes:
    def __init__(self, responses: Responses, gate: Gate, served: Served) -> None:
        self._responses = responses
        self._gate = gate
        self._served = served
        self._limits = responses.limits

    def all(self) -> list[Route | WebSocketRoute]:
        one = "/v1/responses/{id}"
        return [
            WebSocketRoute("/v1/responses", self.connect),
            Route("/v1/responses", self.create, methods=["POST"]),
            Route(one, self.look, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
        ]

    async def connect(self, websocket: WebSocket) -> None:
        guest = replies.admitted(self._gate, websocket)
        if isinstance(guest, Response):
            await websocket.send_denial_response(guest)
            return
        await websocket.accept()
        socket = StarletteSocket(websocket)
        await ResponsesConnection(socket, self._responses, guest.tenant, self._served.name).run()

    async def create(self, request: Request) -> Response:
        guest = replies.admitted(self._gate, request)
        if isinstance(guest, Response):
            return guest
        try:
            create = decode_body(await read_body(request, self._limits.response_frame_bytes_max))
            model = self._served.name(create.model)
            ask = hear(create, self._responses.settings, model, fresh)
            making = await self._responses.begin(ask, Visitor(guest.tenant))
        except Refusal as refusal:
            return replies.refused(refusal)
        if create.stream:
            return self._stream(making.recording)
        if ask.background:
            return replies.json(response_out(making.recording.answer))
        try:
            return replies.json(response_out(await unless_gone(request, making.recording.end())))
        except HungUp:
            return Response()

    async def look(self, request: Request) -> Response:
        guest = replies.admitted(self._gate, request)
        if isinstance(guest, Response):
            return guest
        try:
            recording = await self._responses.recording(_id(request), Visitor(guest.tenant))
            if recording is None:
                raise _unknown(_id(request))
            after = _number(request, "starting_after")
        except Refusal as refusal:
            return replies.refused(refusal)
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            return self._stream(recording, -1 if after is None else after)
        return replies.json(response_out(recording.answer))

    async def delete(self, request: Request) -> Response:
        guest = replies.admitted(self._gate, request)
        if isinstance(guest, Response):
            return guest
        try:
            if not await self._responses.delete(_id(request), Visitor(guest.tenant)):
                raise _unknown(_id(request))
        except Refusal as refusal:
            return replies.refused(refusal)
        return replies.json({"id": _id(request), "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        guest = replies.admitted(self._gate, request)
        if isinstance(guest, Response):
            return guest
        visitor = Visitor(guest.tenant)
        making = self._responses.making(_id(request), visitor)
        if making is not None:
            await making.cancel()
            await making.ended.wait()
            return replies.json(response_out(making.recording.answer))
        return await self.look(request)

    def _stream(self, recording: Recording, after: int = -1) -> Response:
        return EventStream(_events(recording, after), self._limits.send_s_max)


async def _events(recording: Recording, after: int) -> AsyncGenerator[bytes, None]:
    """Those behind the number `after`."""
    voice = Voice()
    async with aclosing(recording.follow()) as following:
        async for told in following:
            for event in voice.say(told):
                if event.sequence_number > after:
                    yield encode_sse(event)


def _id(request: Request) -> str:
    return request.path_params["id"]


def _unknown(id: str) -> Refusal:
    return Refusal(
        f"Response with id '{id[:200]}' not found.", code="response_not_found", param="id"
    )


def _number(request: Request, name: str) -> int | None:
    """Raises Refusal."""
    text = request.query_params.get(name)
    if text is None or (text.isascii() and text.isdigit() and len(text) < 16):
        return None if text is None else int(text)
    raise Refusal(
        f"Invalid '{name}': expected a sequence number, 0 or more.",
        code="invalid_value",
        param=name,
    )

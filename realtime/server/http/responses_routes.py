"""Routes of the Responses API.

    WS     /v1/responses                 create responses, queued by `stream_id`
    POST   /v1/responses                 create a response: JSON, or events (`stream`)
    GET    /v1/responses/ID              a stored or active response; `stream` for its events,
                                         `starting_after` for those after a sequence number
    DELETE /v1/responses/ID              delete a response
    POST   /v1/responses/ID/cancel       cancel an active response
    GET    /v1/responses/ID/input_items  its input items, in pages
    POST   /v1/responses/input_tokens    length of the prompt of a response that is not created

A response belongs to its tenant: the id of another tenant's response is refused like an unknown id.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.responses_api import (
    Encoder,
    InputTokens,
    decode_body,
    decode_command,
    encode_item_page,
    encode_response,
    encode_sse,
)
from continuo.realtime.protocol.responses_api.client_events import ResponseCreate
from continuo.realtime.protocol.validation import invalid_parameter
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.auth.open_connections import OpenConnections
from continuo.realtime.server.http.pagination import select_page
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.served_model import ServedModels
from continuo.realtime.server.http.sse import ClientDisconnected, SSEResponse, run_until_disconnect
from continuo.realtime.transport import StarletteSocket
from continuo.realtime.transport.responses_connection import ResponsesConnection


class ResponsesRoutes:
    """Routes of the Responses API."""

    def __init__(
        self,
        responses: ResponseService,
        authenticator: Authenticator,
        open_connections: OpenConnections,
        served_models: ServedModels,
    ) -> None:
        self._responses = responses
        self._authenticator = authenticator
        self._open_connections = open_connections
        self._served_models = served_models
        self._limits = responses.limits

    def routes(self) -> list[Route | WebSocketRoute]:
        one = "/v1/responses/{id}"
        return [
            WebSocketRoute("/v1/responses", self.connect),
            Route("/v1/responses", self.create, methods=["POST"]),
            Route("/v1/responses", replies.upgrade_required),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
            Route(f"{one}/input_items", self.list_input_items),
            Route("/v1/responses/input_tokens", self.count_input_tokens, methods=["POST"]),
        ]

    async def connect(self, websocket: WebSocket) -> None:
        credentials = replies.authenticate_full_key(self._authenticator, websocket)
        if isinstance(credentials, Response):
            await websocket.send_denial_response(credentials)
            return
        await websocket.accept()
        socket = StarletteSocket(websocket)
        connection = ResponsesConnection(
            socket, self._responses, credentials.tenant, self._served_models.resolve
        )
        try:
            async with self._open_connections.track(
                credentials, connection.close, connection.cancel_responses
            ):
                await connection.run()
        except Refusal as refusal:
            await connection.refuse(refusal)

    async def create(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        try:
            create, command = await self._read_command(request)
            run = await self._responses.create(command, Requester(credentials.tenant))
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        if create.stream:
            return self._stream(run.event_stream)
        if command.background:
            return replies.json_response(encode_response(run.event_stream.response))
        try:
            return replies.json_response(
                encode_response(
                    await run_until_disconnect(request, run.event_stream.wait_for_end())
                )
            )
        except ClientDisconnected:
            return Response()

    async def _read_command(self, request: Request) -> tuple[ResponseCreate, CreateResponse]:
        """Read the request for a response. Raises Refusal."""
        create = decode_body(await read_body(request, self._limits.response_frame_bytes_max))
        await asyncio.sleep(0)  # decoding a large body takes two rounds of the loop, not a long one
        model = self._served_models.resolve(create.model)
        return create, decode_command(create, self._responses.settings, model, generate_id)

    async def get(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request, "read")
        if isinstance(credentials, Response):
            return credentials
        try:
            event_stream = await self._responses.find_event_stream(
                _id(request), Requester(credentials.tenant)
            )
            if event_stream is None:
                raise _not_found(_id(request))
            after = _number(request, "starting_after")
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            return self._stream(event_stream, -1 if after is None else after)
        return replies.json_response(encode_response(event_stream.response))

    async def delete(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        try:
            if not await self._responses.delete(_id(request), Requester(credentials.tenant)):
                raise _not_found(_id(request))
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        return replies.json_response({"id": _id(request), "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        requester = Requester(credentials.tenant)
        run = self._responses.find_run(_id(request), requester)
        if run is not None:
            await run.cancel()
            await run.ended.wait()
            return replies.json_response(encode_response(run.event_stream.response))
        return await self.get(request)

    async def list_input_items(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request, "read")
        if isinstance(credentials, Response):
            return credentials
        try:
            items = await self._responses.find_input(_id(request), Requester(credentials.tenant))
            if items is None:
                raise _not_found(_id(request))
            page, has_more = select_page(items, request.query_params)
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        return replies.json_response(encode_item_page(page, has_more=has_more))

    async def count_input_tokens(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        try:
            _, command = await self._read_command(request)
            count = await self._responses.count_input_tokens(command, Requester(credentials.tenant))
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        return replies.json_response(InputTokens(input_tokens=count))

    def _stream(self, event_stream: EventStream, after: int = -1) -> Response:
        return SSEResponse(_events(event_stream, after), self._limits.send_timeout_s)


async def _events(event_stream: EventStream, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the encoded server-sent events whose sequence number is over `after`."""
    encoder = Encoder()
    async with aclosing(event_stream.follow()) as events:
        async for event in events:
            for server_event in encoder.encode(event):
                if server_event.sequence_number > after:
                    yield encode_sse(server_event)


def _id(request: Request) -> str:
    return request.path_params["id"]


def _not_found(response_id: str) -> Refusal:
    return Refusal(
        f"Response with id '{response_id[:200]}' not found.", code="response_not_found", param="id"
    )


def _number(request: Request, name: str) -> int | None:
    """Return the sequence number in query parameter `name`. Returns None if the parameter is
    missing. Raises Refusal if it is invalid."""
    text = request.query_params.get(name)
    if text is None or (text.isascii() and text.isdigit() and len(text) < 16):
        return None if text is None else int(text)
    raise invalid_parameter(name, "expected a sequence number, 0 or more.")

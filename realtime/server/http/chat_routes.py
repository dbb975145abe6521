"""POST /v1/chat/completions: responds with JSON, or with chunks as server-sent events (`stream`).

Requests and responses are not stored. Their KV stays cached: a later request of the same tenant
reuses the KV of a common prefix.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.chat_api import (
    Encoder,
    decode_body,
    decode_command,
    encode_error,
)
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.served_model import ServedModels
from continuo.realtime.server.http.sse import ClientDisconnected, SSEResponse, run_until_disconnect


class ChatRoutes:
    """Routes of the chat completions API."""

    def __init__(
        self, responses: ResponseService, authenticator: Authenticator, served_models: ServedModels
    ) -> None:
        self._responses = responses
        self._authenticator = authenticator
        self._served_models = served_models

    def routes(self) -> list[Route]:
        return [Route("/v1/chat/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        limits = self._responses.limits
        try:
            create = decode_body(await read_body(request, limits.response_frame_bytes_max))
            model = self._served_models.resolve(create.model)
            command = decode_command(create, self._responses.settings, generate_id)
            run = await self._responses.create(command, Requester(credentials.tenant))
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        options = create.stream_options
        encoder = Encoder(model, include_usage=bool(options and options.include_usage))
        if create.stream:
            return SSEResponse(_chunks(run.event_stream, encoder), limits.send_timeout_s)
        try:
            response = await run_until_disconnect(request, run.event_stream.wait_for_end())
        except ClientDisconnected:
            return Response()
        if response.status == "failed":
            return replies.failure_response(response.error, {"error": encode_error(response)})
        return replies.json_response(encoder.encode_completion(response))


async def _chunks(event_stream: EventStream, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    async with aclosing(event_stream.follow()) as events:
        async for event in events:
            for chunk in encoder.encode(event):
                yield chunk

"""Routes of Anthropic's Messages API. Requests and responses are not stored.

    POST /v1/messages                 a message: JSON, or server-sent events (`stream`)
    POST /v1/messages/count_tokens    the number of tokens of a prompt

Errors have the shape of Anthropic's. The key is sent as `x-api-key`, or as a bearer token.
"""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.messages_api import (
    CountTokensRequest,
    Encoder,
    MessagesRequest,
    decode_body,
    decode_command,
    encode_error,
    encode_failure,
    encode_message,
)
from continuo.realtime.request_context import name_tenant
from continuo.realtime.responses.event_stream import EventStream
from continuo.realtime.responses.run import Requester
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator, Denied
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.served_model import ServedModels
from continuo.realtime.server.http.sse import ClientDisconnected, SSEResponse, run_until_disconnect
from continuo.realtime.server.security_log import security_log


class MessagesRoutes:
    """Routes of the Messages API."""

    def __init__(
        self, responses: ResponseService, authenticator: Authenticator, served_models: ServedModels
    ) -> None:
        self._responses = responses
        self._authenticator = authenticator
        self._served_models = served_models

    def routes(self) -> list[Route]:
        return [
            Route("/v1/messages", self.create, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        try:
            requester = self._authenticate(request)
            body = decode_body(await self._read_body(request), MessagesRequest)
            model = self._served_models.resolve(body.model)
            run = await self._responses.create(self._decode(body), requester)
        except Refusal as refusal:
            return _refusal_response(refusal)
        if body.stream:
            events = _events(run.event_stream, Encoder(model))
            return SSEResponse(
                events, self._responses.limits.send_timeout_s, refuse=_refusal_response
            )
        try:
            response = await run_until_disconnect(request, run.event_stream.wait_for_end())
        except ClientDisconnected:
            return Response()
        if response.status == "failed":
            return replies.failure_response(response.error, encode_failure(response))
        return replies.json_response(encode_message(response, model))

    async def count_tokens(self, request: Request) -> Response:
        try:
            requester = self._authenticate(request)
            body = decode_body(await self._read_body(request), CountTokensRequest)
            self._served_models.resolve(body.model)
            count = await self._responses.count_input_tokens(self._decode(body), requester)
        except Refusal as refusal:
            return _refusal_response(refusal)
        return replies.json_response({"input_tokens": count})

    def _decode(self, body: CountTokensRequest) -> CreateResponse:
        return decode_command(body, self._responses.settings, generate_id)

    def _authenticate(self, request: Request) -> Requester:
        """Return the requester, and charge its request. Raises Refusal without a full key, or if
        its tenant has used its operations."""
        credentials = self._authenticator.authenticate(
            request.headers, "converse", replies.host_of(request)
        )
        if isinstance(credentials, Denied):
            replies.report_denial(credentials, request)
            raise Refusal(
                credentials.message,
                code=credentials.code,
                retry_after_s=credentials.retry_after_s,
            )
        if credentials.is_ephemeral:
            security_log.report("ephemeral_key", request.client)
            raise Refusal("A client secret is not valid for this request.", code="ephemeral_key")
        request.state.credentials = credentials
        name_tenant(credentials.tenant)
        replies.charge_input_of(request, credentials).admit_operation()
        return Requester(credentials.tenant)

    async def _read_body(self, request: Request) -> bytes:
        return await read_body(request, self._responses.limits.response_frame_bytes_max)


async def _events(event_stream: EventStream, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    async with aclosing(event_stream.follow()) as events:
        async for event in events:
            for encoded in encoder.encode(event):
                yield encoded


def _refusal_response(refusal: Refusal) -> Response:
    replies.count_refusal(refusal.code)
    response = replies.json_response(encode_error(refusal), refusal.http_status)
    if refusal.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    return response

"""POST /v1/chat/completions: JSON, or chunks (`stream`). Nothing is kept but KV, which the next
request of the tenant finds as far as it begins alike."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import fresh
from continuo.realtime.protocol.chat_api import Voice, decode, failure, hear, worded
from continuo.realtime.responses.event_stream import Recording
from continuo.realtime.responses.run import Visitor
from continuo.realtime.responses.service import Responses
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Gate
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.served_model import Served
from continuo.realtime.server.http.sse import EventStream, HungUp, unless_gone


class CompletionRoutes:
    def __init__(self, responses: Responses, gate: Gate, served: Served) -> None:
        self._responses = responses
        self._gate = gate
        self._served = served

    def all(self) -> list[Route]:
        return [Route("/v1/chat/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        guest = replies.admitted(self._gate, request)
        if isinstance(guest, Response):
            return guest
        limits = self._responses.limits
        try:
            create = decode(await read_body(request, limits.response_frame_bytes_max))
            model = self._served.name(create.model)
            ask = hear(create, self._responses.settings, fresh)
            making = await self._responses.begin(ask, Visitor(guest.tenant))
        except Refusal as refusal:
            return replies.refused(worded(refusal))
        options = create.stream_options
        voice = Voice(model, usage=bool(options and options.include_usage))
        if create.stream:
            return EventStream(_chunks(making.recording, voice), limits.send_s_max)
        try:
            answer = await unless_gone(request, making.recording.end())
        except HungUp:
            return Response()
        if answer.status == "failed":
            return replies.json({"error": failure(answer)}, 500)
        return replies.json(voice.whole(answer))


async def _chunks(recording: Recording, voice: Voice) -> AsyncGenerator[bytes, None]:
    async with aclosing(recording.follow()) as following:
        async for told in following:
            for chunk in voice.say(told):
                yield chunk

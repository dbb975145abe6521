"""Routes of SGLang's native API, for clients of its sessions.

    GET, POST  /open_session     open a token session: responds with its id
    GET, POST  /close_session    close one; always 200
    POST       /generate         a turn, in a session (`session_params`) or without one
    POST       /abort_request    abort a turn by its `rid`, or all turns of the tenant

Sessions are private to their tenant.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import OutputChunk
from continuo.realtime.completions.token_sessions import TokenSessions, TurnPosition
from continuo.realtime.completions.turn_register import TokenTurn
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.logprobs import finite
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.sglang_api import (
    AbortRequest,
    CloseSession,
    Generate,
    OpenSession,
    OutputSoFar,
    decode_body,
    decode_prompt,
    decode_sampling,
    encode_reply,
    encode_sse,
)
from continuo.realtime.protocol.sglang_api.encoder import FinishReason, TokenScore
from continuo.realtime.registry.access import Credentials
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.sse import ClientDisconnected, SSEResponse, run_until_disconnect


class SGLangRoutes:
    """Routes of SGLang's native API."""

    def __init__(
        self, sessions: TokenSessions, authenticator: Authenticator, limits: Limits
    ) -> None:
        self._sessions = sessions
        self._authenticator = authenticator
        self._limits = limits

    def routes(self) -> list[Route]:
        return [
            Route("/open_session", self.open_session, methods=["GET", "POST"]),
            Route("/close_session", self.close_session, methods=["GET", "POST"]),
            Route("/generate", self.generate, methods=["POST"]),
            Route("/abort_request", self.abort_request, methods=["POST"]),
        ]

    async def open_session(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        try:
            body = decode_body(await self._read_body(request), OpenSession)
            session_id = await self._sessions.open(
                credentials.tenant,
                body.session_id,
                is_streaming=bool(body.streaming),
                timeout_s=body.timeout,
            )
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        return replies.json_response(session_id)

    async def close_session(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        try:
            body = decode_body(await self._read_body(request), CloseSession)
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        await self._sessions.close(credentials.tenant, body.session_id)
        return Response()

    async def abort_request(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        try:
            body = decode_body(await self._read_body(request), AbortRequest)
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        if body.abort_all or body.rid:
            await self._sessions.abort(credentials.tenant, None if body.abort_all else body.rid)
        return Response()

    async def generate(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        turn_id, started_s = "", time.monotonic()
        try:
            body = decode_body(await self._read_body(request), Generate)
            turn_id = body.rid or generate_id("turn")
            turn = await self._start(body, credentials.tenant, turn_id)
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        outputs = _collect(turn_id, turn, self._sessions.read(turn), started_s)
        if body.stream:
            return SSEResponse(_events(outputs), self._limits.send_timeout_s)
        try:
            last = await run_until_disconnect(request, _last(outputs))
        except ClientDisconnected:
            return Response()
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        return replies.json_response(encode_reply(last))

    async def _start(self, body: Generate, tenant: str, turn_id: str) -> TokenTurn:
        (prompt, param), sampling = decode_prompt(body), decode_sampling(body)
        params = body.session_params
        if params is None:
            return await self._sessions.generate(tenant, turn_id, prompt, param, sampling)
        position = TurnPosition(
            after=params.rid,
            replace=bool(params.replace),
            drop_previous_output=bool(params.drop_previous_output),
            offset=params.offset,
        )
        return await self._sessions.generate_in_session(
            tenant, params.id, turn_id, position, prompt, param, sampling
        )

    def _authenticate(self, request: Request) -> Credentials | Response:
        return replies.authenticate_full_key(self._authenticator, request)

    async def _read_body(self, request: Request) -> bytes:
        return await read_body(request, self._limits.response_frame_bytes_max)


async def _collect(
    turn_id: str, turn: TokenTurn, chunks: AsyncGenerator[OutputChunk, None], started_s: float
) -> AsyncGenerator[OutputSoFar, None]:
    """Yield the output so far after each chunk, and once more when the turn has ended."""
    has_scores = turn.sampling.logprobs is not None
    output = OutputSoFar(turn_id=turn_id, ids=[], scores=[] if has_scores else None)
    async with aclosing(chunks):
        async for chunk in chunks:
            output.text += chunk.text
            output.ids += chunk.ids
            if output.scores is not None:
                output.scores += _scores(chunk)
            output.usage = turn.usage
            yield output
    output.usage, output.finish = turn.usage, _finish_reason(turn)
    output.elapsed_s = time.monotonic() - started_s
    yield output


async def _last(outputs: AsyncGenerator[OutputSoFar, None]) -> OutputSoFar:
    async with aclosing(outputs):
        last = [output async for output in outputs][-1:]
    return last[0]


async def _events(outputs: AsyncGenerator[OutputSoFar, None]) -> AsyncGenerator[bytes, None]:
    """Yield the output so far as server-sent events, and the end mark."""
    try:
        async with aclosing(outputs):
            async for output in outputs:
                yield encode_sse(encode_reply(output))
    except Refusal as refusal:
        yield encode_sse({"error": replies.error_fields(refusal)})
    yield b"data: [DONE]\n\n"


def _scores(chunk: OutputChunk) -> list[TokenScore]:
    return [
        TokenScore(
            id, finite(logprobs.drawn), [(other, finite(value)) for other, value in logprobs.top]
        )
        for id, logprobs in zip(chunk.ids, chunk.logprobs or (), strict=False)
    ]


def _finish_reason(turn: TokenTurn) -> FinishReason:
    ended = turn.ended
    match None if ended is None else ended.reason:
        case "length":
            return FinishReason(type="length", length=turn.usage.output_tokens)
        case "stop":
            stop = None if ended is None else ended.stop
            return FinishReason(type="stop", matched=stop if stop is not None else turn.last_id)
        case _:
            return FinishReason(type="abort", message="The request was aborted.")

"""Routes of SGLang's native API, for clients of its sessions.

    GET, POST  /open_session     open a token session: responds with its id
    GET, POST  /close_session    close one; always 200
    POST       /generate         a turn, in a session (`session_params`) or without one, or a batch
    POST       /abort_request    abort a turn by its `rid`, or all turns of the tenant
    GET, POST  /flush_cache      refused: the cache is that of all tenants
    GET        /health_generate  generate a token: 200 if the engine does
    GET        /get_model_info   the model
    GET        /get_server_info  the model, the version, and how much the server takes

Sessions are private to their tenant.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import OutputChunk, Sampling
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
    GenerateReply,
    OpenSession,
    OutputSoFar,
    TurnRequest,
    decode_body,
    decode_turns,
    encode_reply,
    encode_reply_so_far,
    encode_sse,
)
from continuo.realtime.protocol.sglang_api.encoder import FinishReason, OutputScores, TokenScore
from continuo.realtime.protocol.sglang_api.requests import SessionParams
from continuo.realtime.registry.access import Credentials
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.merged_outputs import merge
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.sse import ClientDisconnected, SSEResponse, run_until_disconnect
from continuo.realtime.server.version import VERSION

HEALTH_S_MAX = 20.0
"""Maximum time of the turn of `/health_generate`, in seconds, as in SGLang."""
STREAM_GROWTH_PARTS = 64
"""Up to this number of ids, each chunk is an event of the stream; then the output has to grow by
one part in as many. Each event has the text and the ids so far, and the work stays linear."""


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
            Route("/flush_cache", self.flush_cache, methods=["GET", "POST"]),
            Route("/health_generate", self.health_generate),
            Route("/get_model_info", self.get_model_info),
            Route("/get_server_info", self.get_server_info),
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

    async def flush_cache(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        return replies.refusal_response(
            Refusal(
                "This server flushes no cache: all tenants share it, and pages are evicted when "
                "others need them.",
                code="unsupported_parameter",
            )
        )

    async def health_generate(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        try:
            sampling = Sampling(max_tokens=1, ignore_eos=True)
            turn = await self._sessions.generate(
                credentials.tenant, generate_id("turn"), [0], "input_ids", sampling
            )
            async with aclosing(self._sessions.read(turn)) as chunks, asyncio.timeout(HEALTH_S_MAX):
                async for _ in chunks:
                    pass
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        except TimeoutError:
            return Response(status_code=503)
        return Response(status_code=200 if turn.status == "incomplete" else 503)

    async def get_model_info(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        return replies.json_response(self._describe_model())

    async def get_server_info(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        ready = self._sessions.ready
        return replies.json_response(
            {
                **self._describe_model(),
                "version": VERSION,
                "device": ready.device,
                "dtype": ready.dtype,
                "page_size": ready.page_size,
                "context_length": ready.max_model_len,
                "enable_streaming_session": True,
            }
        )

    def _describe_model(self) -> dict[str, object]:
        name = self._sessions.ready.model
        return {"model_path": name, "tokenizer_path": name, "is_generation": True}

    async def generate(self, request: Request) -> Response:
        credentials = self._authenticate(request)
        if isinstance(credentials, Response):
            return credentials
        started_s = time.monotonic()
        try:
            body = decode_body(await self._read_body(request), Generate)
            requests, is_batch = decode_turns(body)
            turns = await self._start_all(requests, body.session_params, credentials.tenant)
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        if body.stream:
            events = self._events(turns, started_s, is_batch=is_batch)
            return SSEResponse(events, self._limits.send_timeout_s)
        try:
            outputs = await run_until_disconnect(request, self._read_all(turns, started_s))
        except ClientDisconnected:
            return Response()
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        return replies.json_response(outputs if is_batch else outputs[0])

    async def _start_all(
        self, requests: Sequence[TurnRequest], params: SessionParams | None, tenant: str
    ) -> list[TokenTurn]:
        """Start the turns of a request. Raises Refusal; then none runs."""
        turns: list[TokenTurn] = []
        try:
            for request in requests:
                turns.append(await self._start(request, params, tenant))
        except BaseException:
            await self._sessions.close_turns(turns)
            raise
        return turns

    async def _start(
        self, request: TurnRequest, params: SessionParams | None, tenant: str
    ) -> TokenTurn:
        turn_id = request.turn_id or generate_id("turn")
        prompt, param, sampling = request.prompt, request.param, request.sampling
        if params is None:
            turn = await self._sessions.generate(tenant, turn_id, prompt, param, sampling)
            turn.is_prefill_only = request.is_prefill_only
            return turn
        position = TurnPosition(
            after=params.rid,
            replace=bool(params.replace),
            drop_previous_output=bool(params.drop_previous_output),
            offset=params.offset,
        )
        return await self._sessions.generate_in_session(
            tenant,
            params.id,
            turn_id,
            position,
            prompt,
            param,
            sampling,
            is_prefill_only=request.is_prefill_only,
        )

    async def _read(
        self, turns: Sequence[TokenTurn], started_s: float, *, is_streamed: bool
    ) -> AsyncGenerator[tuple[int, GenerateReply], None]:
        """Read all turns at the same time. Yields the output of each, with its index; if
        `is_streamed`, also the output so far after each chunk. Raises Refusal."""
        outputs = [
            _collect(turn, self._sessions.read(turn), started_s, is_streamed=is_streamed)
            for turn in turns
        ]
        try:
            async with aclosing(merge(outputs)) as merged:
                async for index, reply in merged:
                    yield index, reply
        finally:
            await self._sessions.close_turns(turns)

    async def _read_all(self, turns: Sequence[TokenTurn], started_s: float) -> list[GenerateReply]:
        """Read all turns, and return their outputs. Raises Refusal."""
        async with aclosing(self._read(turns, started_s, is_streamed=False)) as outputs:
            found = {index: reply async for index, reply in outputs}
        return [found[index] for index in range(len(turns))]

    async def _events(
        self, turns: Sequence[TokenTurn], started_s: float, *, is_batch: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield the outputs so far as server-sent events, and the end mark."""
        try:
            async with aclosing(self._read(turns, started_s, is_streamed=True)) as outputs:
                async for index, reply in outputs:
                    yield encode_sse(replace(reply, index=index) if is_batch else reply)
        except Refusal as refusal:
            yield encode_sse({"error": replies.error_fields(refusal)})
        yield b"data: [DONE]\n\n"

    def _authenticate(self, request: Request) -> Credentials | Response:
        return replies.authenticate_full_key(self._authenticator, request)

    async def _read_body(self, request: Request) -> bytes:
        return await read_body(request, self._limits.response_frame_bytes_max)


async def _collect(
    turn: TokenTurn,
    chunks: AsyncGenerator[OutputChunk, None],
    started_s: float,
    *,
    is_streamed: bool,
) -> AsyncGenerator[GenerateReply, None]:
    """Yield the output when the turn has ended; if `is_streamed`, also the output so far while it
    grows, with the log-probabilities of the ids that no output before has."""
    has_scores = turn.sampling.logprobs is not None
    output = OutputSoFar(
        turn_id=turn.name or "", ids=[], scores=OutputScores() if has_scores else None
    )
    texts: list[str] = []
    yielded = 0
    """Number of ids of the last output."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if turn.is_prefill_only:
                continue
            texts.append(chunk.text)
            output.ids += chunk.ids
            if output.scores is not None:
                output.scores.add(_scores(chunk))
            if is_streamed and len(output.ids) - yielded > yielded // STREAM_GROWTH_PARTS:
                output.text, output.usage = "".join(texts), turn.usage
                yield encode_reply_so_far(output)
                yielded = len(output.ids)
    output.text = "".join(texts)
    output.usage, output.finish = turn.usage, _finish_reason(turn)
    output.elapsed_s = time.monotonic() - started_s
    yield encode_reply(output)


def _scores(chunk: OutputChunk) -> list[TokenScore]:
    return [
        TokenScore(
            id, finite(logprobs.drawn), [(other, finite(value)) for other, value in logprobs.top]
        )
        for id, logprobs in zip(chunk.ids, chunk.logprobs or (), strict=False)
    ]


def _finish_reason(turn: TokenTurn) -> FinishReason:
    ended = turn.ended
    reason = None if ended is None else ended.reason
    if turn.is_prefill_only and reason in ("length", "stop"):
        return FinishReason(type="length", length=0)
    match reason:
        case "length":
            return FinishReason(type="length", length=turn.usage.output_tokens)
        case "stop":
            stop = None if ended is None else ended.stop
            return FinishReason(type="stop", matched=stop if stop is not None else turn.last_id)
        case _:
            return FinishReason(type="abort", message="The request was aborted.")

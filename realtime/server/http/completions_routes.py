"""POST /v1/completions: responds with JSON, or with chunks as server-sent events (`stream`).

The prompts of a request run at the same time, and share the KV of a common prefix with each other
and with other requests of the tenant.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import Sampling
from continuo.realtime.completions.token_turns import TokenTurns
from continuo.realtime.completions.turn_register import TokenTurn
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.logprobs import read_logprobs
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.completions_api import (
    CompletionEncoder,
    Output,
    decode_body,
    decode_prompts,
    decode_sampling,
)
from continuo.realtime.protocol.completions_api.encoder import FinishReason, encode_sse
from continuo.realtime.protocol.response import ResponseStatus, Usage
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.http.merged_outputs import merge
from continuo.realtime.server.http.request_body import read_body
from continuo.realtime.server.http.served_model import ServedModels
from continuo.realtime.server.http.sse import ClientDisconnected, SSEResponse, run_until_disconnect

_FINISH_REASONS: dict[ResponseStatus, FinishReason] = {
    "completed": "stop",
    "incomplete": "length",
    "cancelled": "abort",
    "failed": "abort",
}
"""The finish reason by the status of a turn. `abort` is SGLang's and vLLM's."""


class CompletionsRoutes:
    """Routes of the completions API."""

    def __init__(
        self,
        turns: TokenTurns,
        authenticator: Authenticator,
        served_models: ServedModels,
        limits: Limits,
        default_sampling: Sampling,
    ) -> None:
        """Args:
        turns: generates them; shared with the routes of SGLang.
        authenticator: names the tenant of a request.
        served_models: the names that a request may give.
        limits: on bodies and prompts.
        default_sampling: what a request leaves out.
        """
        self._turns = turns
        self._authenticator = authenticator
        self._served_models = served_models
        self._limits = limits
        self._default_sampling = default_sampling

    def routes(self) -> list[Route]:
        return [Route("/v1/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        tenant = credentials.tenant
        try:
            body = decode_body(await read_body(request, self._limits.response_frame_bytes_max))
            model = self._served_models.resolve(body.model)
            sampling = decode_sampling(body, self._default_sampling)
            prompts = decode_prompts(body)
            ids = [
                await self._turns.encode(prompt, tenant, _param(prompts, n))
                for n, prompt in enumerate(prompts)
            ]
            for n, one in enumerate(ids):
                self._turns.bound_sampling(sampling, len(one), _param(prompts, n))
            turns = await self._turns.complete_all(ids, sampling, tenant, "prompt")
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        echoes = [self._echo(prompt) if body.echo else "" for prompt in prompts]
        options = body.stream_options
        encoder = CompletionEncoder(
            generate_id("cmpl"),
            model,
            int(time.time()),
            include_usage=bool(options and options.include_usage),
        )
        if body.stream:
            chunks = self._stream(turns, echoes, encoder)
            return SSEResponse(chunks, self._limits.send_timeout_s)
        try:
            work = self._collect(turns, echoes)
            outputs = await run_until_disconnect(request, work)
        except ClientDisconnected:
            return Response()
        except Refusal as refusal:
            return replies.refusal_response(refusal)
        return replies.json_response(encoder.encode_completion(outputs, _sum_usage(turns)))

    def _echo(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._turns.engine.text.decode(prompt)

    async def _collect(self, turns: Sequence[TokenTurn], echoes: Sequence[str]) -> list[Output]:
        """Read all turns at the same time. Returns the whole output of each. Raises Refusal."""

        async def collect(index: int) -> Output:
            async with aclosing(self._read(index, turns[index], echoes[index])) as parts:
                found = [part async for part in parts]
            has_logprobs = turns[index].sampling.logprobs is not None
            tokens = [token for part in found for token in part.logprobs or ()]
            return msgspec.structs.replace(
                found[-1],
                text="".join(part.text for part in found),
                logprobs=tokens if has_logprobs else None,
                offset=0,
            )

        try:
            return list(await asyncio.gather(*map(collect, range(len(turns)))))
        finally:
            await self._turns.close_all(turns)

    async def _stream(
        self,
        turns: Sequence[TokenTurn],
        echoes: Sequence[str],
        encoder: CompletionEncoder,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of all turns as they arrive, then the end of the stream."""
        sources = [self._read(n, turn, echoes[n]) for n, turn in enumerate(turns)]
        try:
            async with aclosing(merge(sources)) as parts:
                async for _, part in parts:
                    yield encoder.encode_chunk(part)
            yield encoder.encode_end(_sum_usage(turns))
        except Refusal as refusal:
            yield encode_sse({"error": replies.error_fields(refusal)})
        finally:
            await self._turns.close_all(turns)

    async def _read(self, index: int, turn: TokenTurn, echo: str) -> AsyncGenerator[Output, None]:
        """Yield the output of a turn in parts, the last of which has the finish reason."""
        has_logprobs = turn.sampling.logprobs is not None
        hidden = () if turn.sampling.ignore_eos else turn.sampling.stop_ids
        token_bytes = self._turns.engine.text.token_bytes.of
        offset = 0
        if echo:
            yield Output(index=index, text=echo)
            offset = len(echo)
        async with aclosing(self._turns.read(turn)) as chunks:
            async for chunk in chunks:
                tokens = read_logprobs(chunk, token_bytes, hidden) if has_logprobs else None
                yield Output(index=index, text=chunk.text, logprobs=tokens, offset=offset)
                offset += len(chunk.text)
        yield Output(index=index, text="", offset=offset, finish=_FINISH_REASONS[turn.status])


def _param(prompts: Sequence[object], index: int) -> str:
    return "prompt" if len(prompts) == 1 else f"prompt[{index}]"


def _sum_usage(turns: Sequence[TokenTurn]) -> Usage:
    usages = [turn.usage for turn in turns]
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
    )

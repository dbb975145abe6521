"""VllmServer: completions on a vLLM server, by its `/v1/completions`, which routers forward.

A prompt is sent whole; the server computes what its prefix cache lacks of it. Its defaults, which
may be those of the model's generation_config, are all overridden.
"""

import contextlib
import hashlib
from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal
from urllib.parse import quote

import msgspec

from continuo.engine.sampling import Sampling
from continuo.engine.text.grammar import build_lark_with_fixed_separators
from continuo.engine.upstream.errors import ReplyLost, RequestRefused, ServerLost, UnusableReply
from continuo.engine.upstream.http import HttpClient, make_error
from continuo.engine.upstream.server import (
    Chunk,
    Completion,
    ServerLoad,
    ServerModel,
    decode_reply,
)
from continuo.engine.upstream.vllm_metrics import find_block_tokens, read_load
from continuo.engine.wire.messages import TokenLogprobs

BLOCK_TOKENS = 16
"""Tokens of a cache block where the server's metrics cannot be read: the default of vLLM."""
ROWS_MAX = 256
"""Requests that vLLM computes at once by default; it does not report their number."""
PREFILL_PRIORITY = 1
"""Priority of a prefill ahead of a turn: after the turns, whose default is 0."""
_LOGPROB_MIN = -9999.0


class _Model(msgspec.Struct):
    id: str
    max_model_len: int


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Logprobs(msgspec.Struct):
    tokens: list[str]
    """Ids, as `token_id:7`."""
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class VllmServer:
    """An UpstreamServer. Knows of sessions only their ids, which routers in front may use."""

    kind = "vLLM"
    has_slots = False
    enforces_lark = True
    max_rows = ROWS_MAX

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._model = ""
        self._has_priorities = True
        """Whether requests may have a priority: False once the server has refused one."""
        self.reuse_tokens = BLOCK_TOKENS

    async def describe(self) -> ServerModel:
        await self._check_health()
        models = decode_reply(await self._http.fetch("GET", "/v1/models"), _Models).data
        if not models:
            raise UnusableReply("the server serves no model")
        self._model = models[0].id
        return ServerModel(
            name=models[0].id,
            max_model_len=models[0].max_model_len,
            version=await self._read_version(),
        )

    async def _check_health(self) -> None:
        """Raise ServerLost while the process that answers has lost its engine: the server is about
        to exit."""
        with contextlib.suppress(RequestRefused):  # a router may not forward it
            await self._http.fetch("GET", "/health")

    async def _read_version(self) -> str:
        try:
            return decode_reply(await self._http.fetch("GET", "/version"), _Version).version
        except (RequestRefused, UnusableReply):  # a router may not forward it
            return ""

    async def measure(self) -> ServerLoad:
        """Read the server's metrics. A server that exposes none has an unknown load."""
        try:
            text = (await self._http.fetch("GET", "/metrics")).decode(errors="replace")
        except RequestRefused:
            return ServerLoad()
        self.reuse_tokens = find_block_tokens(text) or self.reuse_tokens
        return read_load(text)

    async def tokenize(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return decode_reply(await self._http.fetch("POST", "/tokenize", body), _Tokens).tokens

    def find_problem(self, sampling: Sampling) -> str | None:  # noqa: ARG002 - of UpstreamServer
        return None

    def find_kv(self, session: str) -> Literal["unknown"]:  # noqa: ARG002 - of UpstreamServer
        return "unknown"

    def fork(self, parent: str, child: str) -> None:
        """Do nothing: the prefix cache has what both share."""

    def close(self, session: str) -> None:
        pass

    async def prefill(self, session: str, ids: "array[int]", scope: str) -> None:
        """Compute ids by a request for one output id, which is the least that vLLM accepts."""
        sampling = Sampling(priority=PREFILL_PRIORITY)
        request = Completion(
            session=session, ids=ids, sampling=sampling, max_tokens=1, seed=0, scope=scope
        )
        async with aclosing(self.generate(request)) as chunks:
            async for _ in chunks:
                pass

    async def generate(self, request: Completion) -> AsyncGenerator[Chunk]:
        """See UpstreamServer. A priority that the server refuses is left out from then on."""
        body = self._encode(request)
        priority = request.sampling.priority
        if priority and self._has_priorities:
            has_begun = False
            try:
                async with aclosing(self._stream(body | {"priority": priority}, request)) as chunks:
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
                    return
            except RequestRefused as error:
                if has_begun or "priority" not in str(error).lower():
                    raise
                self._has_priorities = False
        async with aclosing(self._stream(body, request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _stream(self, body: dict[str, object], request: Completion) -> AsyncGenerator[Chunk]:
        """Yield the chunks of a request. Raises ReplyLost for a stream without an end."""
        headers = {"X-Session-ID": quote(request.session)}
        last: Chunk | None = None  # kept until the usage, which follows it
        async with aclosing(self._http.stream_events("/v1/completions", body, headers)) as events:
            async for data in events:
                event = decode_reply(data, _Event)
                if event.error is not None:
                    raise _make_error(event.error)
                for choice in event.choices:
                    chunk = _read_choice(choice, request.sampling.logprobs)
                    if chunk.finish is not None:
                        last = chunk
                    elif chunk.ids:
                        yield chunk
                if last is not None and event.usage is not None:
                    details = event.usage.prompt_tokens_details or _PromptDetails()
                    last = msgspec.structs.replace(last, cached_tokens=details.cached_tokens)
        if last is None:
            raise ReplyLost("the stream of a completion was cut")
        yield last

    def _encode(self, request: Completion) -> dict[str, object]:
        """Build the body of a request, without its priority."""
        body: dict[str, object] = {
            "model": self._model,
            "prompt": request.ids.tolist(),
            "add_special_tokens": False,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **_encode_sampling(request.sampling),
        }
        if request.scope:
            body["cache_salt"] = hashlib.sha256(request.scope.encode()).hexdigest()
        return body


def _encode_sampling(sampling: Sampling) -> dict[str, object]:
    params: dict[str, object] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.grammar is None,  # the stop ids of the turn end it instead
        "stop_token_ids": [] if sampling.ignore_eos else list(sampling.stop_ids),
    }
    if sampling.logit_bias:
        params["logit_bias"] = {str(id): bias for id, bias in sampling.logit_bias.items()}
    if sampling.logprobs is not None:
        params |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    if sampling.grammar is not None:
        grammar = build_lark_with_fixed_separators(sampling.grammar)
        params["structured_outputs"] = {"grammar": grammar}
    return params


def _read_choice(choice: _Choice, top_count: int | None) -> Chunk:
    ids, logprobs = choice.token_ids or [], None
    if top_count is not None and choice.logprobs is not None:
        logprobs = _read_logprobs(choice.logprobs, top_count)
        if len(logprobs) != len(ids):
            raise UnusableReply(f"{len(logprobs)} log-probabilities for {len(ids)} ids")
    finish = _read_finish(choice.finish_reason)
    return Chunk(ids, logprobs, finish)


def _read_finish(reason: str | None) -> Literal["stop", "length"] | None:
    match reason:
        case None | "stop" | "length":
            return reason
        case _:  # abort: the server shuts down, or was asked to by another client
            raise ServerLost(f"the server ended a completion: {reason}")


def _read_logprobs(found: _Logprobs, top_count: int) -> list[TokenLogprobs]:
    tops = found.top_logprobs or [None] * len(found.tokens)
    try:
        return [
            TokenLogprobs(_LOGPROB_MIN if drawn is None else drawn, _sort_top(top or {}, top_count))
            for drawn, top in zip(found.token_logprobs, tops, strict=True)
        ]
    except ValueError as error:
        raise UnusableReply(f"log-probabilities cannot be read: {error}") from None


def _sort_top(top: dict[str, float], count: int) -> list[tuple[int, float]]:
    """List the `count` likeliest ids, likeliest first."""
    pairs = [(int(name.removeprefix("token_id:")), logprob) for name, logprob in top.items()]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count]


def _make_error(error: _Error) -> RequestRefused | ServerLost:
    """Make the error of an event that has one. Its code is a status of HTTP."""
    try:
        status = int(error.code or 500)
    except ValueError:
        status = 500
    return make_error(status, error.message)

"""Encoding of completions, whole and in chunks. Pure. Each type validates against the OpenAI SDK's
own."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.protocol.response import TokenLogprob, Usage

FinishReason = Literal["stop", "length", "abort"]
SSE_DONE = b"data: [DONE]\n\n"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Output, or a part of it, for the prompt number `index`. `logprobs`: its tokens; None if they
    were not requested. `offset`: characters of the output before it."""

    index: int
    text: str
    logprobs: Sequence[TokenLogprob] | None = None
    offset: int = 0
    finish: FinishReason | None = None


class LogprobsOut(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChoiceOut(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: LogprobsOut | None
    finish_reason: FinishReason | None


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int


class UsageOut(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[ChoiceOut]
    usage: UsageOut | UnsetType | None = UNSET


class CompletionEncoder:
    """Encodes one completion. `include_usage`: whether a last chunk with the usage is sent."""

    def __init__(self, id: str, model: str, created_s: int, *, include_usage: bool = False) -> None:
        self._id = id
        self._model = model
        self._created_s = created_s
        self._include_usage = include_usage

    def encode_completion(self, outputs: Sequence[Output], usage: Usage) -> Completion:
        return self._make([_encode_choice(output) for output in outputs], _encode_usage(usage))

    def encode_chunk(self, output: Output) -> bytes:
        usage = None if self._include_usage else UNSET
        return encode_sse(self._make([_encode_choice(output)], usage))

    def encode_end(self, usage: Usage) -> bytes:
        """Encode the end of a stream: the usage, if it is included, and the end mark."""
        last = encode_sse(self._make([], _encode_usage(usage))) if self._include_usage else b""
        return last + SSE_DONE

    def _make(self, choices: list[ChoiceOut], usage: UsageOut | UnsetType | None) -> Completion:
        return Completion(
            id=self._id,
            created=self._created_s,
            model=self._model,
            choices=choices,
            usage=usage,
        )


def encode_sse(event: object) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(event)


def _encode_choice(output: Output) -> ChoiceOut:
    return ChoiceOut(
        index=output.index,
        text=output.text,
        logprobs=None
        if output.logprobs is None
        else _encode_logprobs(output.logprobs, output.offset),
        finish_reason=output.finish,
    )


def _encode_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> LogprobsOut:
    texts = [token.token.decode(errors="replace") for token in tokens]
    ends = accumulate(map(len, texts), initial=offset)
    return LogprobsOut(
        tokens=texts,
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[
            {other.decode(errors="replace"): logprob for other, logprob in token.top}
            for token in tokens
        ],
        text_offset=[end for end, _ in zip(ends, texts, strict=False)],
    )


def _encode_usage(usage: Usage) -> UsageOut:
    return UsageOut(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
    )

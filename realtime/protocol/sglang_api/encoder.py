"""Encoding of the output of `/generate`, whole and so far. Pure."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.protocol.response import Usage

LogprobOut = tuple[float, int, None]
"""Log-probability, id, and a text that is never given."""


class FinishReason(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["stop", "length", "abort"]
    matched: int | str | UnsetType | None = UNSET
    """Stop id or stop string that ended the output."""
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET


class MetaInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | UnsetType = UNSET
    input_token_logprobs: list[LogprobOut] | UnsetType = UNSET
    output_token_logprobs: list[LogprobOut] | UnsetType = UNSET
    output_top_logprobs: list[list[LogprobOut]] | UnsetType = UNSET


class GenerateReply(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET
    """Place of the prompt, in the stream of a batch."""


class TokenScore(msgspec.Struct, frozen=True):
    """Log-probability of an output id, and of the likeliest ids in its place."""

    id: int
    logprob: float
    top: Sequence[tuple[int, float]]


class OutputSoFar(msgspec.Struct, kw_only=True):
    """Output of a turn up to now. `finish`: None while it runs."""

    turn_id: str
    text: str = ""
    ids: list[int] = []
    scores: list[TokenScore] | None = None
    finish: FinishReason | None = None
    usage: Usage = Usage()
    elapsed_s: float | None = None


def encode_reply(output: OutputSoFar, first_score: int = 0) -> GenerateReply:
    """Encode the output so far, with the log-probabilities of its ids from `first_score` on."""
    scores = None if output.scores is None else output.scores[first_score:]
    return GenerateReply(
        text=output.text,
        output_ids=list(output.ids),
        meta_info=MetaInfo(
            id=output.turn_id,
            finish_reason=output.finish,
            prompt_tokens=output.usage.input_tokens,
            completion_tokens=len(output.ids),
            cached_tokens=output.usage.cached_tokens,
            e2e_latency=UNSET if output.elapsed_s is None else output.elapsed_s,
            input_token_logprobs=UNSET if scores is None else [],
            output_token_logprobs=UNSET
            if scores is None
            else [(score.logprob, score.id, None) for score in scores],
            output_top_logprobs=UNSET
            if scores is None
            else [[(logprob, id, None) for id, logprob in score.top] for score in scores],
        ),
    )


def encode_sse(event: object) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(event)

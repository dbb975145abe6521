"""Encoding of the output of `/generate`, whole and so far. Pure."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.protocol.encoded_array import EncodedArray
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
    output_token_logprobs: msgspec.Raw | UnsetType = UNSET
    """Array of `LogprobOut`."""
    output_top_logprobs: msgspec.Raw | UnsetType = UNSET
    """Array of arrays of `LogprobOut`."""


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


class OutputScores:
    """Scores of the ids of an output, encoded as they arrive."""

    def __init__(self) -> None:
        self.tokens = EncodedArray()
        self.tops = EncodedArray()

    def add(self, scores: Sequence[TokenScore]) -> None:
        self.tokens.add([(score.logprob, score.id, None) for score in scores])
        self.tops.add([[(logprob, id, None) for id, logprob in score.top] for score in scores])


class OutputSoFar(msgspec.Struct, kw_only=True):
    """Output of a turn up to now. `finish`: None while it runs."""

    turn_id: str
    text: str = ""
    ids: list[int] = []
    scores: OutputScores | None = None
    """None if they were not requested."""
    finish: FinishReason | None = None
    usage: Usage = Usage()
    elapsed_s: float | None = None


def encode_reply(output: OutputSoFar) -> GenerateReply:
    """Encode the output with the log-probabilities of all its ids."""
    scores = output.scores
    if scores is None:
        return _encode(output, UNSET, UNSET)
    return _encode(output, scores.tokens.read(), scores.tops.read())


def encode_reply_so_far(output: OutputSoFar) -> GenerateReply:
    """Encode the output with the log-probabilities of the ids that no call before has encoded."""
    scores = output.scores
    if scores is None:
        return _encode(output, UNSET, UNSET)
    return _encode(output, scores.tokens.take_new(), scores.tops.take_new())


def _encode(
    output: OutputSoFar, tokens: msgspec.Raw | UnsetType, tops: msgspec.Raw | UnsetType
) -> GenerateReply:
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
            input_token_logprobs=UNSET if output.scores is None else [],
            output_token_logprobs=tokens,
            output_top_logprobs=tops,
        ),
    )


def encode_sse(event: object) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(event)

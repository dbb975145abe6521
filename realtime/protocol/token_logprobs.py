"""Log-probabilities of output tokens in OpenAI's JSON, the same in responses and chat completions.
Each type validates against the OpenAI SDK's own."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from continuo.realtime.protocol.encoded_array import EncodedArray
from continuo.realtime.protocol.response import TokenLogprob

_PIECE_TOKENS = 64
"""Tokens whose objects exist at a time: many more would start the collector of garbage."""


class TopLogprobOut(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprobOut(TopLogprobOut, frozen=True, kw_only=True):
    top_logprobs: list[TopLogprobOut]


EncodedLogprobs = Annotated[msgspec.Raw, Meta(extra={"encodes": list[TokenLogprobOut]})]
"""The JSON of a list of TokenLogprobOut."""


def add_logprobs(array: EncodedArray, tokens: Sequence[TokenLogprob]) -> None:
    """Encode the tokens, and add them to `array`."""
    for start in range(0, len(tokens), _PIECE_TOKENS):
        array.add([_encode(token) for token in tokens[start : start + _PIECE_TOKENS]])


def encode_logprobs(tokens: Sequence[TokenLogprob]) -> msgspec.Raw:
    """Return the tokens as a JSON array."""
    array = EncodedArray()
    add_logprobs(array, tokens)
    return array.read()


def _encode(token: TokenLogprob) -> TokenLogprobOut:
    return TokenLogprobOut(
        token=token.token.decode(errors="replace"),
        bytes=list(token.token),
        logprob=token.logprob,
        top_logprobs=[
            TopLogprobOut(token=other.decode(errors="replace"), bytes=list(other), logprob=logprob)
            for other, logprob in token.top
        ],
    )

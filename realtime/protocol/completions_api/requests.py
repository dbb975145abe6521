"""Requests of `POST /v1/completions`. Keys that are not listed are ignored; null counts as
absent."""

from typing import Annotated

import msgspec
from msgspec import Meta

from continuo.realtime import limits
from continuo.realtime.protocol.sampling import BoundedText, LogitBias, SamplingIn
from continuo.realtime.protocol.validation import decode_json

MaxTokens = Annotated[int, Meta(ge=1, le=limits.OUTPUT_TOKENS_MAX)]
One = Annotated[int, Meta(ge=1, le=1)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None


class CompletionRequest(SamplingIn, frozen=True, kw_only=True):
    prompt: BoundedText | list[object]
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    model: str | None = None
    max_tokens: MaxTokens | None = None
    n: One | None = None
    best_of: One | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logit_bias: LogitBias | None = None
    echo: bool | None = None
    suffix: BoundedText | None = None
    response_format: object = None
    structured_outputs: object = None
    guided_json: object = None
    guided_regex: object = None
    guided_choice: object = None
    guided_grammar: object = None
    """Refused, as the five before: chat completions have output formats."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None


_decoder = msgspec.json.Decoder(CompletionRequest)


def decode_body(body: bytes) -> CompletionRequest:
    """Decode the body of a request. Raises BadFrame."""
    return decode_json(_decoder, body, "body")

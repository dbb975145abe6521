"""Decoding of requests: their prompts and sampling parameters. Pure; raises Refusal for requests
that pass the type checks of msgspec but are invalid."""

from collections.abc import Sequence

import msgspec

from continuo.engine import Sampling
from continuo.realtime import limits
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.completions_api.requests import CompletionRequest
from continuo.realtime.protocol.sampling import BoundedText, merge_sampling
from continuo.realtime.protocol.validation import (
    invalid_parameter,
    unsupported_parameter,
    unsupported_value,
)

_FORMATS = (
    *("response_format", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
MAX_TOKENS_DEFAULT = 16
"""Default of `max_tokens`, as in OpenAI's API."""


def decode_prompts(request: CompletionRequest) -> list[str | list[int]]:
    """Return the prompts of a request, each a text or token ids. Raises Refusal."""
    given = request.prompt
    prompts = [given] if isinstance(given, str) or _is_ids(given) else given
    if not 1 <= len(prompts) <= limits.PROMPTS_MAX:
        raise invalid_parameter("prompt", f"expected 1 to {limits.PROMPTS_MAX} prompts.")
    try:
        decoded = msgspec.convert(prompts, list[BoundedText | list[int]])
    except msgspec.ValidationError:
        raise invalid_parameter(
            "prompt", "expected a text, a list of texts, token ids, or a list of lists of them."
        ) from None
    if not all(decoded):
        raise invalid_parameter("prompt", "a prompt is empty.")
    chars = sum(len(prompt) for prompt in decoded if isinstance(prompt, str))
    if chars > limits.REQUEST_CHARS_MAX:
        raise Refusal(
            f"The prompts are {chars:,} characters together; the limit is "
            f"{limits.REQUEST_CHARS_MAX:,}.",
            code="string_above_max_length",
            param="prompt",
        )
    return decoded


def decode_sampling(request: CompletionRequest, default: Sampling) -> Sampling:
    """Return the sampling parameters of a request. Raises Refusal for what is not supported."""
    if request.suffix:
        raise unsupported_parameter("suffix", "the model continues a prompt, it fills no gap")
    for field in _FORMATS:
        if getattr(request, field) is not None:
            raise unsupported_parameter(field, "use it with /v1/chat/completions")
    if request.echo and request.logprobs is not None:
        raise unsupported_value("echo", "log-probabilities are reported for the output alone")
    return msgspec.structs.replace(
        merge_sampling(request, default, default),
        max_tokens=request.max_tokens or MAX_TOKENS_DEFAULT,
        logit_bias=request.logit_bias or {},
        logprobs=request.logprobs,
    )


def _is_ids(prompt: Sequence[object]) -> bool:
    return bool(prompt) and all(isinstance(id, int) and not isinstance(id, bool) for id in prompt)

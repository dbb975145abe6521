"""Decoding of `/generate`: its prompt and sampling parameters. Pure; raises Refusal for requests
that pass the type checks of msgspec but are invalid."""

from continuo.engine import Grammar, Sampling
from continuo.realtime.protocol.sglang_api.requests import Generate
from continuo.realtime.protocol.validation import (
    invalid_parameter,
    missing_parameter,
    unsupported_parameter,
)

MAX_NEW_TOKENS_DEFAULT = 128
"""Default of `max_new_tokens`, as in SGLang."""


def decode_prompt(request: Generate) -> tuple[str | list[int], str]:
    """Return the prompt of a request, a text or token ids, and the name of its field."""
    if request.text is not None and request.input_ids is not None:
        raise invalid_parameter("text", "give either 'text' or 'input_ids'.")
    if request.input_ids is not None:
        return request.input_ids, "input_ids"
    if request.text is None:
        raise missing_parameter("text")
    return request.text, "text"


def decode_sampling(request: Generate) -> Sampling:
    """Return the sampling parameters of a request. Raises Refusal for what is not supported."""
    given = request.sampling_params
    for name in ("regex", "ebnf"):
        if getattr(given, name):
            raise unsupported_parameter(f"sampling_params.{name}", "use 'json_schema'")
    stop = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ())
    top_k = given.top_k
    return Sampling(
        max_tokens=given.max_new_tokens or MAX_NEW_TOKENS_DEFAULT,
        temperature=1.0 if given.temperature is None else given.temperature,
        top_p=1.0 if given.top_p is None else given.top_p,
        top_k=0 if top_k is None or top_k < 0 else min(top_k, 1_000_000),
        min_p=given.min_p or 0.0,
        repetition_penalty=given.repetition_penalty or 1.0,
        presence_penalty=given.presence_penalty or 0.0,
        frequency_penalty=given.frequency_penalty or 0.0,
        stop=stop,
        stop_ids=tuple(given.stop_token_ids or ()),
        ignore_eos=bool(given.ignore_eos),
        seed=given.sampling_seed,
        grammar=Grammar("json_schema", given.json_schema) if given.json_schema else None,
        logprobs=(request.top_logprobs_num or 0) if request.return_logprob else None,
    )

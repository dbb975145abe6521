"""Decoding of `/generate`: its prompts and sampling parameters. Pure; raises Refusal for requests
that pass the type checks of msgspec but are invalid."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar, cast

from continuo.engine import Grammar, Sampling, build_regex_grammar
from continuo.realtime import limits
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.sglang_api.requests import Generate, SamplingParams
from continuo.realtime.protocol.validation import (
    invalid_parameter,
    missing_parameter,
    unsupported_parameter,
    unsupported_value,
)

T = TypeVar("T")
MAX_NEW_TOKENS_DEFAULT = 128
"""Default of `max_new_tokens`, as in SGLang."""
_NOT_DONE = {
    "token_ids_logprob": "use 'top_logprobs_num'",
    "return_text_in_logprobs": "log-probabilities have ids without texts",
    "return_hidden_states": "the model's hidden states are not reported",
    "input_embeds": "use 'input_ids'",
    "image_data": "the models of this server read text alone",
    "audio_data": "the models of this server read text alone",
    "video_data": "the models of this server read text alone",
    "lora_path": "this server loads no adapters",
    "custom_logit_processor": "use 'logit_bias'",
}
_SAMPLING_NOT_DONE = {
    "ebnf": "use 'regex' or 'json_schema'",
    "structural_tag": "use 'regex' or 'json_schema'",
    "min_new_tokens": "use 'ignore_eos' with 'max_new_tokens'",
    "stop_regex": "use 'stop'",
}


class TurnRequest(NamedTuple):
    """One turn of a request.

    `prompt`: a text or token ids; `param`: the field that gives it; `turn_id`: None if the server
    chooses it; `is_prefill_only`: its output, of one token, is discarded.
    """

    prompt: str | list[int]
    param: str
    turn_id: str | None
    sampling: Sampling
    is_prefill_only: bool


def decode_turns(request: Generate) -> tuple[list[TurnRequest], bool]:
    """Return the turns of a request, and whether they are a batch, which is answered by a list.
    Raises Refusal for what is not supported."""
    _refuse_given(request, _NOT_DONE, "")
    prompts, param, is_list = _decode_prompts(request)
    samplings, ids = _decode_samplings(request, len(prompts)), _decode_ids(request, len(prompts))
    copies = {given.n or 1 for given in samplings}
    if len(copies) > 1:
        raise invalid_parameter("sampling_params", "'n' must be the same for all prompts.")
    (count,) = copies
    if count * len(prompts) > limits.PROMPTS_MAX:
        raise invalid_parameter(
            "sampling_params.n", f"'n' times the prompts may be {limits.PROMPTS_MAX} at most."
        )
    is_batch = is_list or count > 1
    if is_batch and request.session_params is not None:
        raise unsupported_value("session_params", "a session's turn has one prompt and one output")
    turns = [
        TurnRequest(
            prompt,
            f"{param}[{n}]" if is_list else param,
            _number_copy(ids[n], copy, count),
            _decode_sampling(given, _decode_logprobs(request, n, len(prompts))),
            given.max_new_tokens == 0,
        )
        for n, (prompt, given) in enumerate(zip(prompts, samplings, strict=True))
        for copy in range(count)
    ]
    return turns, is_batch


def _number_copy(turn_id: str | None, copy: int, count: int) -> str | None:
    """Return the id of one of the outputs of a prompt."""
    return turn_id if turn_id is None or count == 1 else f"{turn_id}_{copy}"


def _decode_prompts(request: Generate) -> tuple[Sequence[str | list[int]], str, bool]:
    """Return the prompts of a request, the name of their field, and whether it has a list."""
    text, given = request.text, request.input_ids
    if text is not None and given is not None:
        raise invalid_parameter("text", "give either 'text' or 'input_ids'.")
    if given is not None:
        if not given or all(isinstance(id, int) for id in given):
            return [cast(list[int], given)], "input_ids", False
        if not all(isinstance(ids, list) for ids in given):
            raise invalid_parameter("input_ids", "give token ids, or a list of lists of them.")
        if len(given) > limits.PROMPTS_MAX:
            raise invalid_parameter(
                "input_ids", f"it has {len(given)} prompts; the limit is {limits.PROMPTS_MAX}."
            )
        return cast(list[list[int]], given), "input_ids", True
    if text is None:
        raise missing_parameter("text")
    if isinstance(text, str):
        return [text], "text", False
    chars = sum(map(len, text))
    if chars > limits.REQUEST_CHARS_MAX:
        raise Refusal(
            f"The prompts are {chars:,} characters together; the limit is "
            f"{limits.REQUEST_CHARS_MAX:,}.",
            code="string_above_max_length",
            param="text",
        )
    return text, "text", True


def _decode_samplings(request: Generate, count: int) -> Sequence[SamplingParams]:
    spread = _spread(request.sampling_params, count, "sampling_params")
    given = [params or SamplingParams() for params in spread]
    for n, params in enumerate(given):
        is_list = isinstance(request.sampling_params, list)
        path = f"sampling_params[{n}]" if is_list else "sampling_params"
        _refuse_given(params, _SAMPLING_NOT_DONE, f"{path}.")
        if params.json_schema and params.regex:
            raise invalid_parameter(f"{path}.regex", "give either 'regex' or 'json_schema'.")
    return given


def _decode_ids(request: Generate, count: int) -> Sequence[str | None]:
    """Return the ids of the turns; a single one is numbered in a batch."""
    rid = request.rid
    if isinstance(rid, str) and count > 1:
        return [f"{rid}_{n}" for n in range(count)]
    ids = _spread(rid, count, "rid")
    if rid is not None and len(set(ids)) < len(ids):
        raise invalid_parameter("rid", "an id is given twice.")
    return ids


def _decode_logprobs(request: Generate, index: int, count: int) -> int | None:
    """Return the number of likeliest ids to report with each output id of a prompt; None: report no
    log-probabilities. Raises Refusal for those of the prompt."""
    if not _spread(request.return_logprob, count, "return_logprob")[index]:
        return None
    start = _spread(request.logprob_start_len, count, "logprob_start_len")[index]
    if start not in (None, -1):
        raise unsupported_value(
            "logprob_start_len", "log-probabilities are reported for the output alone: give -1"
        )
    return _spread(request.top_logprobs_num, count, "top_logprobs_num")[index] or 0


def _spread(value: T | list[T] | None, count: int, param: str) -> Sequence[T | None]:
    """Return the value of each of `count` prompts: the elements of a list, or one for all."""
    if not isinstance(value, list):
        return [value] * count
    given = cast(list[T], value)
    if len(given) != count:
        raise invalid_parameter(param, f"it has {len(given)} elements for {count} prompts.")
    return given


def _refuse_given(given: object, not_done: dict[str, str], path: str) -> None:
    """Raise Refusal if a request asks for what is not done. `not_done`: the fields, and what to do
    instead."""
    for name, instead in not_done.items():
        value: object = getattr(given, name)
        if value not in (None, False, 0, "", [], {}) and not _is_empty(value):
            raise unsupported_parameter(f"{path}{name}", instead)


def _is_empty(value: object) -> bool:
    """Whether a value is a list, such as one for each prompt, of values that ask for nothing."""
    return isinstance(value, list) and not any(cast(list[object], value))


def _decode_sampling(given: SamplingParams, logprobs: int | None) -> Sampling:
    stop = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ())
    top_k, max_tokens = given.top_k, given.max_new_tokens
    return Sampling(
        max_tokens=MAX_NEW_TOKENS_DEFAULT if max_tokens is None else max(max_tokens, 1),
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
        logit_bias=given.logit_bias or {},
        grammar=_decode_grammar(given),
        logprobs=logprobs,
    )


def _decode_grammar(given: SamplingParams) -> Grammar | None:
    if given.json_schema:
        return Grammar("json_schema", given.json_schema)
    return build_regex_grammar(given.regex) if given.regex else None

"""Bounds on token ids and on the sampling of a turn.

The engine client checks them, and the engine checks them again, because its clients are other
processes. All other code trusts checked values.
"""

import math
from collections.abc import Sequence

from continuo.engine.errors import BadRequest
from continuo.engine.wire.messages import Sampling

LOGPROBS_MAX = 20
STOP_STRINGS_MAX = 16
STOP_CHARACTERS_MAX = 256
LOGIT_BIASES_MAX = 1024
STOP_IDS_MAX = 1024
"""Maximum number of stop ids. No tokenizer has as many special tokens that end a response."""


def check_token_ids(ids: Sequence[int], vocab_size: int, field: str = "ids") -> None:
    """Raise BadRequest for an id outside the vocabulary. The caller ensures that all ids are
    ints."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        at = next(n for n, id in enumerate(ids) if not 0 <= id < vocab_size)
        raise BadRequest(
            f"{field} must be from 0 to {vocab_size - 1}; {field}[{at}] is {ids[at]}", field=field
        )


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raise BadRequest for a value out of bounds; the error names the field and its limits."""
    s = sampling
    _check_range("temperature", s.temperature, 0, 100)
    _check_range("top_k", s.top_k, 0, vocab_size)
    _check_range("top_p", s.top_p, 0, 1, open_low=True)
    _check_range("min_p", s.min_p, 0, 1)
    _check_range("repetition_penalty", s.repetition_penalty, 0, 10, open_low=True)
    _check_range("presence_penalty", s.presence_penalty, -2, 2)
    _check_range("frequency_penalty", s.frequency_penalty, -2, 2)
    if s.max_tokens is not None:
        _check_range("max_tokens", s.max_tokens, 1, 1 << 31)
    if s.logprobs is not None:
        _check_range("logprobs", s.logprobs, 0, LOGPROBS_MAX)
    if s.seed is not None:
        _check_range("seed", s.seed, -(1 << 63), (1 << 63) - 1)
    _check_range("number of stop strings", len(s.stop), 0, STOP_STRINGS_MAX)
    _check_range("number of logit_bias entries", len(s.logit_bias), 0, LOGIT_BIASES_MAX)
    _check_range("number of stop_ids", len(s.stop_ids), 0, STOP_IDS_MAX)
    check_token_ids(s.stop_ids, vocab_size, "stop_ids")
    if s.grammar is not None:
        _check_grammar_end(s)
    for stop in s.stop:
        _check_range("length of a stop string", len(stop), 1, STOP_CHARACTERS_MAX)
    for id, bias in s.logit_bias.items():
        _check_range("logit_bias id", id, 0, vocab_size - 1)
        _check_range("logit_bias value", bias, -100, 100)


def _check_grammar_end(sampling: Sampling) -> None:
    """Raise BadRequest if a turn with a grammar could never end: only a stop id may follow a
    complete match."""
    if sampling.ignore_eos:
        raise BadRequest("ignore_eos cannot be used with a grammar", field="ignore_eos")
    if not sampling.stop_ids:
        raise BadRequest("a grammar needs stop_ids: no other id can end the turn", field="stop_ids")


def _check_range(
    field: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    fits = (low < value if open_low else low <= value) and value <= high
    if math.isnan(value) or not fits:
        above = "above" if open_low else "from"
        raise BadRequest(
            f"{field} is {value}; it must be {above} {low} and at most {high}", field=field
        )

"""Bounds on token ids and sampling that depend on the vocabulary, or on several fields together.

The engine client checks them, and the engine checks them again, because its clients are other
processes. All other code trusts checked values. The bounds of single fields are part of their
types, which msgspec checks when it decodes a command.
"""

import re
from collections.abc import Sequence

from continuo.engine.errors import BadRequest
from continuo.engine.sampling import Sampling

_FIELD_PATH = re.compile(r"\$((?:\.\w+|\[\.*\d*\])*)")


def find_field(problem: str) -> str | None:
    """Return the name of the field that an error text of msgspec is about, or None."""
    path = _FIELD_PATH.search(problem)
    return (path and path[1].partition("[")[0].rpartition(".")[2]) or None


def check_token_ids(ids: Sequence[int], vocab_size: int, field: str = "ids") -> None:
    """Raise BadRequest for an id outside the vocabulary. The caller ensures that all ids are
    ints."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        at = next(n for n, id in enumerate(ids) if not 0 <= id < vocab_size)
        raise BadRequest(
            f"{field} must be from 0 to {vocab_size - 1}; {field}[{at}] is {ids[at]}", field=field
        )


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raise BadRequest for an id outside the vocabulary, and for a turn with a grammar that could
    never end: only a stop id may follow a complete match."""
    check_token_ids(sampling.stop_ids, vocab_size, "stop_ids")
    if sampling.logit_bias:
        check_token_ids(list(sampling.logit_bias), vocab_size, "logit_bias")
    if sampling.grammar is None:
        return
    if sampling.ignore_eos:
        raise BadRequest("ignore_eos cannot be used with a grammar", field="ignore_eos")
    if not sampling.stop_ids:
        raise BadRequest("a grammar needs stop_ids: no other id can end the turn", field="stop_ids")

"""Bounded types and sampling parameters that all wire protocols share. Pure.

In a request, an absent parameter (UNSET) keeps its current value; null resets it to the default.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from continuo.engine import Sampling
from continuo.realtime import limits
from continuo.realtime.errors import Refusal

T = TypeVar("T")

ItemId = Annotated[str, Meta(min_length=1, max_length=limits.ITEM_ID_CHARS_MAX)]
BoundedText = Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX)]
BoundedName = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX)]
StopString = Annotated[str, Meta(min_length=1, max_length=limits.STOP_CHARS_MAX)]
StopStrings = Annotated[list[StopString], Meta(max_length=limits.STOP_STRINGS_MAX)]
Metadata = Annotated[
    dict[
        Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX)],
        Annotated[str, Meta(max_length=limits.METADATA_VALUE_CHARS_MAX)],
    ],
    Meta(max_length=limits.METADATA_PAIRS_MAX),
]


class SamplingIn(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of a request, with vLLM's names and ranges."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType | None = UNSET
    top_p: Annotated[float, Meta(gt=0, le=1)] | UnsetType | None = UNSET
    top_k: Annotated[int, Meta(ge=0, le=limits.TOP_K_MAX)] | UnsetType | None = UNSET
    min_p: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | UnsetType | None = UNSET
    stop: StopString | StopStrings | UnsetType | None = UNSET
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | UnsetType | None = UNSET
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | UnsetType | None = UNSET
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | UnsetType | None = UNSET
    ignore_eos: bool | UnsetType | None = UNSET


def resolve_field(value: T | UnsetType | None, current: T, default: T) -> T:
    if isinstance(value, UnsetType):
        return current
    return default if value is None else value


def merge_sampling(requested: SamplingIn, current: Sampling, default: Sampling) -> Sampling:
    stop = requested.stop
    if isinstance(stop, str):
        stops = (stop,)
    elif stop is None:
        stops = default.stop
    else:
        stops = current.stop if isinstance(stop, UnsetType) else tuple(stop)
    if isinstance(requested.seed, UnsetType):
        seed = current.seed
    else:
        seed = default.seed if requested.seed is None else requested.seed
    return msgspec.structs.replace(
        current,
        temperature=resolve_field(requested.temperature, current.temperature, default.temperature),
        top_p=resolve_field(requested.top_p, current.top_p, default.top_p),
        top_k=resolve_field(requested.top_k, current.top_k, default.top_k),
        min_p=resolve_field(requested.min_p, current.min_p, default.min_p),
        repetition_penalty=resolve_field(
            requested.repetition_penalty, current.repetition_penalty, default.repetition_penalty
        ),
        presence_penalty=resolve_field(
            requested.presence_penalty, current.presence_penalty, default.presence_penalty
        ),
        frequency_penalty=resolve_field(
            requested.frequency_penalty, current.frequency_penalty, default.frequency_penalty
        ),
        seed=seed,
        stop=stops,
        ignore_eos=resolve_field(requested.ignore_eos, current.ignore_eos, default.ignore_eos),
    )


def missing_parameter(param: str) -> Refusal:
    return Refusal(
        f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
    )

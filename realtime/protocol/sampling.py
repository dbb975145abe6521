"""Bounded types and sampling parameters that all wire protocols share. Pure.

In a request, an absent parameter (UNSET) keeps its current value; null resets it to the default.
"""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from continuo.engine import Sampling, SamplingSettings, StopString
from continuo.realtime import limits

T = TypeVar("T")

ItemId = Annotated[str, Meta(min_length=1, max_length=limits.ITEM_ID_CHARS_MAX)]
BoundedText = Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX)]
BoundedName = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX)]
Metadata = Annotated[
    dict[
        Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX)],
        Annotated[str, Meta(max_length=limits.METADATA_VALUE_CHARS_MAX)],
    ],
    Meta(max_length=limits.METADATA_PAIRS_MAX),
]


TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
LogitBias = Annotated[
    dict[int, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=limits.LOGIT_BIAS_KEYS_MAX)
]


SAMPLING_TYPES: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(SamplingSettings)
}
"""Types of the sampling parameters, with their bounds, by name."""

SamplingIn = msgspec.defstruct(
    "SamplingIn",
    [
        (name, kind | UnsetType | None, UNSET)
        for name, kind in {**SAMPLING_TYPES, "stop": StopString | SAMPLING_TYPES["stop"]}.items()
    ],
    frozen=True,
    kw_only=True,
)
"""Sampling parameters of a request: those of the engine, and a single `stop` need not be a list."""


def resolve_field(value: T | UnsetType | None, current: T, default: T) -> T:
    if isinstance(value, UnsetType):
        return current
    return default if value is None else value


def merge_sampling(requested: msgspec.Struct, current: Sampling, default: Sampling) -> Sampling:
    """Return `current` with the parameters that a SamplingIn requests."""
    chosen = {
        name: resolve_field(
            getattr(requested, name), getattr(current, name), getattr(default, name)
        )
        for name in SAMPLING_TYPES
    }
    if isinstance(chosen["stop"], str):
        chosen["stop"] = (chosen["stop"],)
    return msgspec.structs.replace(current, **chosen)


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters in effect, as fields of a SamplingSettings."""
    return {name: getattr(sampling, name) for name in SAMPLING_TYPES}

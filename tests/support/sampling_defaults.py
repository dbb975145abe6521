"""Sampling parameters with default values, which recorded sessions and responses leave out, so that
a new parameter changes no recording."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from continuo.engine import SamplingSettings

_DEFAULTS = json.loads(msgspec.json.encode(SamplingSettings()))
_SAMPLED_OBJECTS = ("realtime.session", "realtime.response")


def without_default_sampling(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a JSON object, without the sampling parameters of a Realtime session or
    response that have their defaults."""
    defaults = _DEFAULTS if value.get("object") in _SAMPLED_OBJECTS else {}
    for key, field in value.items():
        if key not in defaults or field != defaults[key]:
            yield key, field

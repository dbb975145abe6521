"""Mask the sentences of error messages, the one part of a frozen trace that may be improved."""

import json
from typing import Any

MASK = "(sentence)"


def masked(value: Any) -> Any:
    """`value` with the `message` of every error object replaced by MASK. An error object is one
    that also has a `code`."""
    match value:
        case dict():
            return {
                key: MASK if key == "message" and "code" in value and field else masked(field)
                for key, field in value.items()
            }
        case list():
            return [masked(element) for element in value]
        case _:
            return value


def masked_frame(frame: str) -> str:
    """A frame of JSON; byte for byte as it is if it has no error object."""
    parsed = json.loads(frame)
    plain = masked(parsed)
    return frame if plain == parsed else json.dumps(plain)

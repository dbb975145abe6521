"""Mask the sentences of error messages, the one part of a frozen trace that may be improved."""

import json
from typing import Any

MASK = "(sentence)"


def masked(value: Any) -> Any:
    """`value` with the `message` of every error object replaced by MASK.

    An error object is an object with a `message` and a `code`.
    """
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
    """Mask a frame of JSON. A frame without an error object is returned byte for byte."""
    parsed = json.loads(frame)
    masked_json = masked(parsed)
    return frame if masked_json == parsed else json.dumps(masked_json)

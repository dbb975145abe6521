"""Mask what may change in a frozen trace: sentences of error messages, which may be improved, and
sampling parameters with default values, which may be added. And the tags of sessions, which event
ids had not at first: the frozen ids without tags must stay valid cursors."""

import json
import re
from typing import Any

from tests.support.sampling_defaults import without_default_sampling

MASK = "(sentence)"
_SESSION_TAG = re.compile(
    r"(?<=~)[0-9a-f]{6}(?=[0-9a-f]{9,10}(?![0-9a-f]))|~[0-9a-f]{6}(?![0-9a-f])"
)


def masked(value: Any) -> Any:
    """`value` with the `message` of every error object replaced by MASK, and without sampling
    parameters that have their defaults.

    An error object is an object with a `message` and a `code`.
    """
    match value:
        case dict():
            return {
                key: MASK if key == "message" and "code" in value and field else masked(field)
                for key, field in without_default_sampling(value)
            }
        case list():
            return [masked(element) for element in value]
        case _:
            return value


def without_session_tags(text: str) -> str:
    """Remove the tag of the session from all event ids."""
    return _SESSION_TAG.sub("", text)


def masked_frame(frame: str) -> str:
    """Mask a frame of JSON. A frame without anything to mask is returned byte for byte."""
    frame = without_session_tags(frame)
    parsed = json.loads(frame)
    masked_json = masked(parsed)
    return frame if masked_json == parsed else json.dumps(masked_json)

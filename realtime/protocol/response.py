"""One response: its status, its items' ids, its usage and its error."""

from typing import Literal

import msgspec

from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.settings import GenerationSettings

ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]


KVResidency = Literal["hot", "host", "recomputed", "none"]
"""Where the KV of a prompt was found (`none`: there was nothing to find)."""


IncompleteReason = Literal["client_cancelled", "max_output_tokens", "steered"]
"""Why an answer is not whole."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of the input, how many were already in KV."""
    output_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    """From the queue to the first token."""
    model_s: float = 0.0
    """Of the device's work for the answer."""
    residency: KVResidency = "none"


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response, as it is now."""

    id: str
    conversation: str | None
    """None: made apart from the conversation."""
    settings: GenerationSettings
    metadata: dict[str, str] | None = None
    status: ResponseStatus = "in_progress"
    reason: IncompleteReason | None = None
    error: ResponseError | None = None
    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    previous: str | None = None
    """The answer it goes on from, where answers are what one goes on from."""
    kept: bool = False
    """Whether one can go on from it over another connection."""
    created_s: int = 0
    """Since 1970."""
    ended_s: int | None = None

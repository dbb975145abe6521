"""Response of the model: its status, items, usage and error."""

from typing import Literal

import msgspec

from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.settings import GenerationSettings

ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]


KVResidency = Literal["hot", "host", "recomputed", "none", "unknown"]
"""Place where the earlier KV of a prompt was found: on the device (`hot`) or in host memory
(`host`). `recomputed` if it was lost, `none` if there was no earlier KV."""


IncompleteReason = Literal["client_cancelled", "max_output_tokens", "steered"]
"""Reason why a response ended before the model had finished it."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    input_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that were not computed since the last response of the session."""
    output_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    """Time from the end of queueing to the first token."""
    model_s: float = 0.0
    """Time that the device spent on the response."""
    residency: KVResidency = "none"
    reasoning_tokens: int = 0
    """Output tokens of the reasoning, and of the tokens around it."""
    computed_tokens: int = 0
    """Tokens before the output that were computed since the last response of the session: also
    ahead of this one, and those of words that were replaced."""
    prefilled_after_commit: int = 0
    """Number of `computed_tokens` that were computed after the response was requested."""


class TokenLogprob(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A token of the output: its bytes, its natural log-probability, and those of the likeliest
    tokens in its place, likeliest first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


TRANSIENT_FAILURES = frozenset({"busy", "engine_lost", "engine_unavailable", "store_unavailable"})
"""Codes of failures because the engine or the store was away or busy."""


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed soon: neither request nor server is at fault."""
        return self.code in TRANSIENT_FAILURES


class Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current state of a response."""

    id: str
    conversation: str | None
    """Id of the conversation that the response is added to; None if out of band, and in the
    Responses API if the request names none."""
    settings: GenerationSettings
    metadata: dict[str, str] | None = None
    status: ResponseStatus = "in_progress"
    reason: IncompleteReason | None = None
    error: ResponseError | None = None
    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    previous: str | None = None
    """Id of the response that this one continues; only in the Responses API."""
    is_stored: bool = False
    """Whether the response is stored, so that other connections can continue it."""
    created_s: int = 0
    """Unix time of creation, in seconds."""
    ended_s: int | None = None
    logprobs: dict[str, tuple[TokenLogprob, ...]] = {}
    """Tokens of each message of the output, by item id; empty if they were not requested."""
    stop_string: str | None = None
    """The stop string that ended the output, if one did."""

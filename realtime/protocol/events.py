"""Events of a conversation, the same for all wire protocols.

Events with a tag are stored, as arrays: a new field goes last, and has a default."""

from typing import Literal

import msgspec

from continuo.realtime.protocol.items import Item, OutputItem
from continuo.realtime.protocol.response import KVResidency, Response, TokenLogprob
from continuo.realtime.protocol.settings import GenerationSettings

RateLimitKind = Literal["requests", "tokens"]


class RateLimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Current level of one token bucket."""

    name: RateLimitKind
    limit_per_minute: int
    remaining: int
    reset_s: float
    """Time until the bucket is full."""


class ResumeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Data with which a client can resume its session, and how this connection resumed the session,
    if it did."""

    session_id: str
    epoch: str
    """Epoch of the event ids."""
    window_s: float
    """Time after a disconnect within which the session can be resumed."""
    expires_at: int
    """Unix time in seconds at which the connection is closed, and the session with it."""
    token: str | None = None
    """Resume token; sent once, when the session is created."""
    resumed: Literal["exact", "snapshot"] | None = None
    """`exact`: the missed events follow. `snapshot`: the whole conversation follows. None if the
    session is new."""
    kv_residency: KVResidency = "none"


class SessionOpened(msgspec.Struct, frozen=True):
    settings: GenerationSettings
    resume: ResumeInfo | None = None


class SessionResumed(msgspec.Struct, frozen=True):
    settings: GenerationSettings
    resume: ResumeInfo


class Rewind(msgspec.Struct, frozen=True):
    """Effect of an edit on KV: the number of leading tokens that keep their KV, and the number of
    tokens after them that must be prefilled."""

    kept_tokens: int
    prefill_tokens: int


class SessionConfigured(msgspec.Struct, frozen=True):
    settings: GenerationSettings
    rewind: Rewind | None = None
    """Effect of the change on KV; None if all KV stays valid. The fields `rewind` of other events
    have the same meaning."""


class ItemAdded(msgspec.Struct, frozen=True):
    item: Item
    previous_item_id: str | None
    rewind: Rewind | None = None


class ItemFetched(msgspec.Struct, frozen=True):
    item: Item


class ItemDeleted(msgspec.Struct, frozen=True, array_like=True, tag="item_deleted"):
    item_id: str
    rewind: Rewind | None = None


class ItemTruncated(msgspec.Struct, frozen=True, array_like=True, tag="item_truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int | None = None
    text_end: int | None = None
    rewind: Rewind | None = None


class TextAppended(msgspec.Struct, frozen=True, array_like=True, tag="text_appended"):
    length: int
    """Length of the input text buffer after the change, in characters."""


class TextCleared(msgspec.Struct, frozen=True, array_like=True, tag="text_cleared"):
    pass


class TextCommitted(msgspec.Struct, frozen=True, array_like=True, tag="text_committed"):
    item_id: str
    previous_item_id: str | None


class ResponseStarted(msgspec.Struct, frozen=True, array_like=True, tag="response_started"):
    response: Response


class OutputItemStarted(msgspec.Struct, frozen=True, array_like=True, tag="output_item_started"):
    response_id: str
    index: int
    """Number of output items before this one; reasoning is not counted."""
    item: OutputItem
    previous: str | None
    """Id of the item before this one in the conversation, if any."""
    is_out_of_band: bool
    """Whether the item is out of band: not added to a conversation."""


class TextDelta(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="text_delta"):
    response_id: str
    index: int
    item_id: str
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """Tokens since the delta before; empty if they were not requested."""


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="reasoning_delta"):
    response_id: str
    index: int
    item_id: str
    text: str


class ArgumentsDelta(msgspec.Struct, frozen=True, array_like=True, tag="arguments_delta"):
    response_id: str
    index: int
    item_id: str
    call_id: str
    text: str


class OutputItemEnded(msgspec.Struct, frozen=True, array_like=True, tag="output_item_ended"):
    response_id: str
    index: int
    item: OutputItem
    previous: str | None
    is_out_of_band: bool


class ResponseEnded(msgspec.Struct, frozen=True, array_like=True, tag="response_ended"):
    response: Response


class ResponseInterrupted(msgspec.Struct, frozen=True):
    """The engine that served this response was lost; generation resumes after `sent_chars`."""

    response_id: str
    item_id: str | None
    """The item that was being generated, if any."""
    sent_chars: int
    """Characters (code points) of the item `item_id` that were emitted before the interruption."""


class ContinuityReported(msgspec.Struct, frozen=True):
    """The store was replaced by another one, or an empty one. `restored`: the session is in the
    store again, as its client knows it. `lost`: it is not, because another gateway has the session,
    or it was deleted."""

    status: Literal["restored", "lost"]


class ResponseSteered(msgspec.Struct, frozen=True, array_like=True, tag="response_steered"):
    """Steering input of a response was accepted; the successor of the response will contain it."""

    response_id: str
    steer_id: str


ResponseEvent = (
    ResponseStarted
    | OutputItemStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | OutputItemEnded
    | ResponseEnded
    | ResponseSteered
)
"""Events of one response, from ResponseStarted to ResponseEnded."""


ConversationEvent = (
    SessionOpened
    | SessionResumed
    | SessionConfigured
    | ItemAdded
    | ItemFetched
    | ItemDeleted
    | ItemTruncated
    | TextAppended
    | TextCleared
    | TextCommitted
    | ResponseStarted
    | OutputItemStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | OutputItemEnded
    | ResponseEnded
    | ResponseInterrupted
    | ContinuityReported
)

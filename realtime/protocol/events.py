"""Events of a conversation, whatever wire protocol they go out by."""

from typing import Literal

import msgspec

from continuo.realtime.protocol.items import FunctionCallItem, Item, MessageItem
from continuo.realtime.protocol.response import KVResidency, Response
from continuo.realtime.protocol.settings import GenerationSettings

RateLimitKind = Literal["requests", "tokens"]


class RateLimitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of what is limited, now."""

    name: RateLimitKind
    limit_per_minute: int
    """A minute."""
    remaining: int
    reset_s: float
    """Until all of it remains."""


class ResumeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs to come back, and how it came back."""

    session_id: str
    epoch: str
    """Of the positions in event ids."""
    window_s: float
    """How long the session waits for it after a drop."""
    expires_at: int
    """When its connection ends, and it with that: Unix time, seconds."""
    token: str | None = None
    """Told once, when the session is made."""
    resumed: Literal["exact", "snapshot"] | None = None
    """`exact`: what follows is what was missed. `snapshot`: everything, again. None: it is new."""
    kv_residency: KVResidency = "none"


class SessionOpened(msgspec.Struct, frozen=True):
    settings: GenerationSettings
    resume: ResumeInfo | None = None


class SessionResumed(msgspec.Struct, frozen=True):
    settings: GenerationSettings
    resume: ResumeInfo


class Rewind(msgspec.Struct, frozen=True):
    """What an edit did to what the model had read: so many tokens stay, so many behind them are
    read again, or for the first time."""

    kept_tokens: int
    prefill_tokens: int


class SessionConfigured(msgspec.Struct, frozen=True):
    settings: GenerationSettings
    rewind: Rewind | None = None
    """Here and below: None if all that the model had read stays."""


class ItemAdded(msgspec.Struct, frozen=True):
    item: Item
    previous_item_id: str | None
    rewind: Rewind | None = None


class ItemFetched(msgspec.Struct, frozen=True):
    item: Item


class ItemDeleted(msgspec.Struct, frozen=True):
    item_id: str
    rewind: Rewind | None = None


class ItemTruncated(msgspec.Struct, frozen=True):
    item_id: str
    content_index: int
    audio_end_ms: int | None = None
    text_end: int | None = None
    rewind: Rewind | None = None


class TextAppended(msgspec.Struct, frozen=True):
    length: int
    """Characters in the buffer now."""


class TextCleared(msgspec.Struct, frozen=True):
    pass


class TextCommitted(msgspec.Struct, frozen=True):
    item_id: str
    previous_item_id: str | None


class ResponseStarted(msgspec.Struct, frozen=True, tag="AnswerStarted"):
    answer: Response


class OutputItemStarted(msgspec.Struct, frozen=True, tag="OutputStarted"):
    answer_id: str
    index: int
    item: MessageItem | FunctionCallItem
    previous: str | None
    apart: bool


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="TextDelta"):
    answer_id: str
    index: int
    item_id: str
    text: str


class ArgumentsDelta(msgspec.Struct, frozen=True, tag="ArgumentsDelta"):
    answer_id: str
    index: int
    item_id: str
    call_id: str
    text: str


class OutputItemEnded(msgspec.Struct, frozen=True, tag="OutputEnded"):
    answer_id: str
    index: int
    item: MessageItem | FunctionCallItem
    previous: str | None
    apart: bool


class ResponseEnded(msgspec.Struct, frozen=True, tag="AnswerEnded"):
    answer: Response


class ResponseInterrupted(msgspec.Struct, frozen=True):
    """What makes it is gone: soon it goes on behind what was told."""

    response_id: str
    item_id: str | None
    """The item that was being said; None: none was."""
    sent_chars: int
    """Characters (code points) of that item that were told."""


class ResponseSteered(msgspec.Struct, frozen=True, tag="Steered"):
    """More was said to the answer while it was made; it is ours, and goes into the next one."""

    answer_id: str
    steer_id: str


ResponseEvent = (
    ResponseStarted
    | OutputItemStarted
    | TextDelta
    | ArgumentsDelta
    | OutputItemEnded
    | ResponseEnded
    | ResponseSteered
)
"""Of one answer, from AnswerStarted to AnswerEnded: a recording of it. The store keeps recordings:
the tags, like the names of the fields, are part of its format."""


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
    | ArgumentsDelta
    | OutputItemEnded
    | ResponseEnded
    | ResponseInterrupted
)

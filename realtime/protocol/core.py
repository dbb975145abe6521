"""What the session core hears (Ask) and says (Tell), whatever the wire.

A wire vocabulary turns its client events into Asks and Tells into its server events. Items are
values: an edited item is a new one under the same id.
"""

from typing import Literal

import msgspec

from continuo.engine import Sampling

ItemStatus = Literal["in_progress", "completed", "incomplete"]
AnswerStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
ItemRole = Literal["system", "user", "assistant"]
Residency = Literal["hot", "host", "recomputed", "none"]
"""Where the KV of a prompt was found (`none`: there was nothing to find)."""
Reason = Literal["client_cancelled", "max_output_tokens", "steered"]
"""Why an answer is not whole."""
PartKind = Literal["input_text", "output_text", "input_audio"]

Limited = Literal["requests", "tokens"]

ROOT = "root"
"""As `after`: in front of every item."""


class Part(msgspec.Struct, frozen=True):
    """`input_audio` stands for its transcript: all that a text server can know of it."""

    kind: PartKind
    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    role: ItemRole
    parts: tuple[Part, ...]
    status: ItemStatus = "completed"


class CallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class CallOutputItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"


Item = MessageItem | CallItem | CallOutputItem


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    parameters: str = "{}"
    """JSON schema, as text."""
    strict: bool = False
    """Calls must follow the schema; one that cannot be enforced is refused."""


class ToolChoice(msgspec.Struct, frozen=True):
    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a conversation that outgrows the context."""

    mode: Literal["auto", "disabled", "retention_ratio"] = "auto"
    ratio: float = 0.8
    """How much stays when the oldest items are dropped: of the context, or with `retention_ratio`
    of what may follow the instructions."""
    after_instructions: int | None = None
    """Tokens that may follow the instructions; None: up to the context."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are made. `extras` is what only the wire vocabulary understands, as JSON."""

    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    """Whether an answer may make more than one call."""
    max_output_tokens: int | None = None
    """None: up to the context."""
    sampling: Sampling = Sampling()
    """`max_tokens` and `stop_ids` are filled in when a turn starts. `grammar` is of what an answer
    says; what calls need is added to it."""
    truncation: Truncation = Truncation()
    extras: str = "{}"


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
    residency: Residency = "none"


class AnswerError(msgspec.Struct, frozen=True):
    code: str
    message: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response, as it is now."""

    id: str
    conversation: str | None
    """None: made apart from the conversation."""
    settings: Settings
    metadata: dict[str, str] | None = None
    status: AnswerStatus = "in_progress"
    reason: Reason | None = None
    error: AnswerError | None = None
    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    previous: str | None = None
    """The answer it goes on from, where answers are what one goes on from."""
    kept: bool = False
    """Whether one can go on from it over another connection."""
    created_s: int = 0
    """Since 1970."""
    ended_s: int | None = None


# ---------------------------------------------------------------- what the core hears


class Configure(msgspec.Struct, frozen=True):
    settings: Settings


class AddItem(msgspec.Struct, frozen=True):
    item: Item
    after: str | None = None
    """An item's id, ROOT, or None: at the end."""


class FetchItem(msgspec.Struct, frozen=True):
    item_id: str


class DropItem(msgspec.Struct, frozen=True):
    item_id: str


class TruncateItem(msgspec.Struct, frozen=True):
    item_id: str
    content_index: int
    audio_end_ms: int | None = None
    """Alone it changes nothing: a text server does not know what was heard by then."""
    text_end: int | None = None
    """Code points of the text that were heard."""


class ItemReference(msgspec.Struct, frozen=True):
    item_id: str


class Respond(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    metadata: dict[str, str] | None = None
    apart: bool = False
    """Beside the conversation: nothing is added to it."""
    conversation: str | None = None
    """The id of the one that is meant; None: the session's."""
    context: tuple[Item | ItemReference, ...] | None = None
    """Answer to this instead of the conversation."""


class GoOn(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to what was said up to and including another answer, and to `input`."""

    settings: Settings
    input: tuple[Item | ItemReference, ...] = ()
    previous: str | None = None
    """An answer's id; None: nothing was said before."""
    metadata: dict[str, str] | None = None
    keep: bool = True
    """So that one can go on from it over another connection."""
    generate: bool = True
    """False: only take it in."""
    background: bool = False
    """It is made to the end though nobody follows it."""


class Cancel(msgspec.Struct, frozen=True):
    answer_id: str | None = None


class AppendText(msgspec.Struct, frozen=True):
    """To the input text buffer: words that are not final yet."""

    text: str


class ReplaceText(msgspec.Struct, frozen=True):
    text: str


class ClearText(msgspec.Struct, frozen=True):
    pass


class CommitText(msgspec.Struct, frozen=True):
    """The buffer becomes a user's message under this id."""

    item_id: str


TextBuffer = AppendText | ReplaceText | ClearText | CommitText
Ask = Configure | AddItem | FetchItem | DropItem | TruncateItem | Respond | Cancel | TextBuffer


# ---------------------------------------------------------------- what the core says


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Of what is limited, now."""

    name: Limited
    limit: int
    """A minute."""
    remaining: int
    reset_s: float
    """Until all of it remains."""


class Resume(msgspec.Struct, frozen=True, kw_only=True):
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
    kv: Residency = "none"


class Opened(msgspec.Struct, frozen=True):
    settings: Settings
    resume: Resume | None = None


class Resumed(msgspec.Struct, frozen=True):
    settings: Settings
    resume: Resume


class Rewind(msgspec.Struct, frozen=True):
    """What an edit did to what the model had read: so many tokens stay, so many behind them are
    read again, or for the first time."""

    kept_tokens: int
    prefill_tokens: int


class Configured(msgspec.Struct, frozen=True):
    settings: Settings
    rewind: Rewind | None = None
    """Here and below: None if all that the model had read stays."""


class ItemAdded(msgspec.Struct, frozen=True):
    item: Item
    previous: str | None
    rewind: Rewind | None = None


class ItemFetched(msgspec.Struct, frozen=True):
    item: Item


class ItemDropped(msgspec.Struct, frozen=True):
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
    previous: str | None


class AnswerStarted(msgspec.Struct, frozen=True, tag="AnswerStarted"):
    answer: Answer


class OutputStarted(msgspec.Struct, frozen=True, tag="OutputStarted"):
    answer_id: str
    index: int
    item: MessageItem | CallItem
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


class OutputEnded(msgspec.Struct, frozen=True, tag="OutputEnded"):
    answer_id: str
    index: int
    item: MessageItem | CallItem
    previous: str | None
    apart: bool


class AnswerEnded(msgspec.Struct, frozen=True, tag="AnswerEnded"):
    answer: Answer


class AnswerInterrupted(msgspec.Struct, frozen=True):
    """What makes it is gone: soon it goes on behind what was told."""

    answer_id: str
    item_id: str | None
    """The item that was being said; None: none was."""
    upto: int
    """Characters (code points) of that item that were told."""


class Steered(msgspec.Struct, frozen=True, tag="Steered"):
    """More was said to the answer while it was made; it is ours, and goes into the next one."""

    answer_id: str
    steer_id: str


Told = (
    AnswerStarted | OutputStarted | TextDelta | ArgumentsDelta | OutputEnded | AnswerEnded | Steered
)
"""Of one answer, from AnswerStarted to AnswerEnded: a recording of it. The store keeps recordings:
the tags, like the names of the fields, are part of its format."""

Tell = (
    Opened
    | Resumed
    | Configured
    | ItemAdded
    | ItemFetched
    | ItemDropped
    | ItemTruncated
    | TextAppended
    | TextCleared
    | TextCommitted
    | AnswerStarted
    | OutputStarted
    | TextDelta
    | ArgumentsDelta
    | OutputEnded
    | AnswerEnded
    | AnswerInterrupted
)

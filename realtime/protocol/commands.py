"""Commands on a conversation, the same for all wire protocols."""

from typing import ClassVar

import msgspec

from continuo.engine import EffortSetting
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.settings import GenerationSettings


class FieldNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the fields of a command in the wire protocol that it came by, for errors. The
    defaults are those of the Responses API."""

    input: str = "input"
    instructions: str = "instructions"
    tools: str = "tools"
    tool_choice: str = "tool_choice"
    named_tool: str = "tool_choice.name"
    output_schema: str = "text.format.schema"
    ignore_eos: str = "ignore_eos"
    reasoning_effort: str = "reasoning.effort"
    reasoning_tokens: str = "reasoning.max_tokens"
    enable_thinking: str = "enable_thinking"
    template_options: str = "chat_template_kwargs"

    @classmethod
    def within(cls, outer: str) -> "FieldNames":
        """Return the names of fields that are in the object `outer`."""
        names = msgspec.structs.asdict(cls())
        return cls(**{field: f"{outer}.{name}" for field, name in names.items()})


class ConfigureSession(msgspec.Struct, frozen=True):
    settings: GenerationSettings
    field_names: ClassVar[FieldNames] = FieldNames.within("session")


class AddItem(msgspec.Struct, frozen=True):
    item: Item
    after: str | None = None
    """Position of the new item: after the item with this id, at the beginning (ROOT) or at the end
    (None)."""


class AddItems(msgspec.Struct, frozen=True):
    """Add items to the end of the conversation, all or none."""

    items: tuple[Item, ...]


class AppendResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Append the input and the output of a response that was generated outside of the session."""

    response_id: str
    input: tuple[Item, ...]
    output: tuple[Item, ...]
    sampled_ids: tuple[int, ...]
    effort: EffortSetting


class FetchItem(msgspec.Struct, frozen=True):
    item_id: str


class DeleteItem(msgspec.Struct, frozen=True):
    item_id: str


class TruncateItem(msgspec.Struct, frozen=True):
    item_id: str
    content_index: int
    audio_end_ms: int | None = None
    """Milliseconds of audio that the user received. Does not change the item: a text server cannot
    map a time to a position in the text."""
    text_end: int | None = None
    """Code points of the text that the user received; the text is cut after them. None leaves the
    text unchanged."""


class CreateSessionResponse(msgspec.Struct, frozen=True, kw_only=True):
    field_names: ClassVar[FieldNames] = FieldNames.within("response")
    settings: GenerationSettings
    metadata: dict[str, str] | None = None
    is_out_of_band: bool = False
    """Whether the response leaves the conversation unchanged."""
    conversation_id: str | None = None
    """Id of the conversation to respond in; None means the conversation of the session."""
    context: tuple[Item | ItemReference, ...] | None = None
    """Items that replace the conversation in the prompt; None means the conversation itself."""


class CreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Generate a response to the conversation of a previous response, followed by `input`."""

    settings: GenerationSettings
    input: tuple[Item | ItemReference, ...] = ()
    previous_response_id: str | None = None
    """Id of the response to continue; None starts a conversation."""
    conversation_id: str | None = None
    """Id of the stored conversation that the response continues, and to which its input and output
    are added when it has ended; None if there is none."""
    metadata: dict[str, str] | None = None
    store: bool = True
    """Whether the response is stored, so that other connections can continue it."""
    generate: bool = True
    """If false, the prompt is prefilled and no output is generated."""
    background: bool = False
    """If true, the response is generated to its end even without a reader."""
    field_names: FieldNames = FieldNames()


class CancelResponse(msgspec.Struct, frozen=True):
    response_id: str | None = None


class AppendText(msgspec.Struct, frozen=True):
    """Append text that is not final yet to the input text buffer."""

    text: str


class ReplaceText(msgspec.Struct, frozen=True):
    text: str


class ClearText(msgspec.Struct, frozen=True):
    pass


class CommitText(msgspec.Struct, frozen=True):
    """Turn the input text buffer into a user message with the id `item_id`."""

    item_id: str


TextBufferCommand = AppendText | ReplaceText | ClearText | CommitText


ConversationCommand = (
    ConfigureSession
    | AddItem
    | AddItems
    | AppendResponse
    | FetchItem
    | DeleteItem
    | TruncateItem
    | CreateSessionResponse
    | CancelResponse
    | TextBufferCommand
)

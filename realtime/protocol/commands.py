"""Commands on a conversation, the same for all wire protocols."""

import msgspec

from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.settings import GenerationSettings


class ConfigureSession(msgspec.Struct, frozen=True):
    settings: GenerationSettings


class AddItem(msgspec.Struct, frozen=True):
    item: Item
    after: str | None = None
    """Position of the new item: after the item with this id, at the beginning (ROOT) or at the end
    (None)."""


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
    metadata: dict[str, str] | None = None
    store: bool = True
    """Whether the response is stored, so that other connections can continue it."""
    generate: bool = True
    """If false, the prompt is prefilled and no output is generated."""
    background: bool = False
    """If true, the response is generated to its end even without a reader."""


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
    | FetchItem
    | DeleteItem
    | TruncateItem
    | CreateSessionResponse
    | CancelResponse
    | TextBufferCommand
)

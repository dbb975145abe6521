"""Commands on a conversation, whatever wire protocol they came by."""

import msgspec

from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.settings import GenerationSettings


class ConfigureSession(msgspec.Struct, frozen=True):
    settings: GenerationSettings


class AddItem(msgspec.Struct, frozen=True):
    item: Item
    after: str | None = None
    """An item's id, ROOT, or None: at the end."""


class FetchItem(msgspec.Struct, frozen=True):
    item_id: str


class DeleteItem(msgspec.Struct, frozen=True):
    item_id: str


class TruncateItem(msgspec.Struct, frozen=True):
    item_id: str
    content_index: int
    audio_end_ms: int | None = None
    """Alone it changes nothing: a text server does not know what was heard by then."""
    text_end: int | None = None
    """Code points of the text that were heard."""


class CreateSessionResponse(msgspec.Struct, frozen=True, kw_only=True):
    settings: GenerationSettings
    metadata: dict[str, str] | None = None
    is_out_of_band: bool = False
    """Beside the conversation: nothing is added to it."""
    conversation_id: str | None = None
    """The id of the one that is meant; None: the session's."""
    context: tuple[Item | ItemReference, ...] | None = None
    """Answer to this instead of the conversation."""


class CreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to what was said up to and including another answer, and to `input`."""

    settings: GenerationSettings
    input: tuple[Item | ItemReference, ...] = ()
    previous_response_id: str | None = None
    """An answer's id; None: nothing was said before."""
    metadata: dict[str, str] | None = None
    store: bool = True
    """So that one can go on from it over another connection."""
    generate: bool = True
    """False: only take it in."""
    background: bool = False
    """It is made to the end though nobody follows it."""


class CancelResponse(msgspec.Struct, frozen=True):
    response_id: str | None = None


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

"""Commands on a conversation, whatever wire protocol they came by."""

import msgspec

from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.settings import Settings


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

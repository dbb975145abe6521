"""Requests and replies of the Conversations API, and what a session stores for it. Keys of requests
that are not listed are ignored; null counts as absent."""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from continuo.realtime.protocol.responses_api.client_events import ItemIn
from continuo.realtime.protocol.sampling import Metadata
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.protocol.validation import decode_json

T = TypeVar("T")
ITEMS_MAX = 100
"""Maximum number of items that one request adds."""
Items = Annotated[list[ItemIn], Meta(max_length=ITEMS_MAX)]


class CreateConversation(msgspec.Struct, frozen=True, kw_only=True):
    items: Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Metadata | None = None


class CreateItems(msgspec.Struct, frozen=True, kw_only=True):
    items: Annotated[list[ItemIn], Meta(min_length=1, max_length=ITEMS_MAX)]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a conversation that its session stores besides the items."""

    created_at: int = 0
    metadata: dict[str, str] = {}


class _Extras(msgspec.Struct, frozen=True, kw_only=True):
    conversation: Record = Record()


class ConversationOut(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


def decode_body(body: bytes, kind: type[T]) -> T:
    """Decode the body of a request. Raises BadFrame."""
    return decode_json(msgspec.json.Decoder(kind), body, "body")


def read_record(settings: GenerationSettings) -> Record:
    return msgspec.json.decode(settings.extras, type=_Extras).conversation


def write_record(settings: GenerationSettings, record: Record) -> GenerationSettings:
    """Return the settings with `record` in place of the one before."""
    extras: dict[str, object] = msgspec.json.decode(settings.extras, type=dict[str, object])
    encoded = msgspec.json.encode({**extras, "conversation": record}).decode()
    return msgspec.structs.replace(settings, extras=encoded)


def encode_conversation(conversation_id: str, record: Record) -> ConversationOut:
    return ConversationOut(
        id=conversation_id, created_at=record.created_at, metadata=record.metadata
    )

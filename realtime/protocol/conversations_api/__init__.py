"""OpenAI's Conversations API: a stored history of items, which is a session of this server.

body ───decode_body──▶ CreateConversation, CreateItems, … ──decode_new_items──▶ items
JSON ◀──────────────── ConversationOut, pages of items (as in the Responses API)
"""

from continuo.realtime.protocol.conversations_api.decoder import decode_new_items
from continuo.realtime.protocol.conversations_api.structs import (
    ConversationOut,
    CreateConversation,
    CreateItems,
    Record,
    UpdateConversation,
    decode_body,
    encode_conversation,
    read_record,
    write_record,
)

__all__ = [
    "ConversationOut",
    "CreateConversation",
    "CreateItems",
    "Record",
    "UpdateConversation",
    "decode_body",
    "decode_new_items",
    "encode_conversation",
    "read_record",
    "write_record",
]

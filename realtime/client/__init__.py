"""Python client of the Realtime API: conversations that survive lost connections.

Imports nothing of the server, and no torch. Public as `continuo.client`.
"""

from continuo.realtime.client.client import RealtimeClient, ResumePoint, connect
from continuo.realtime.client.connection import ConnectionOptions, ConnectionState
from continuo.realtime.client.conversation import (
    Conversation,
    ConversationChange,
    ItemInserted,
    ItemRemoved,
    ItemsReplaced,
    ItemUpdated,
    ResponseUpdated,
    TextAppended,
)
from continuo.realtime.client.draft import Draft
from continuo.realtime.client.errors import (
    ClientError,
    ConnectionClosedError,
    EventRefusedError,
    ResponseFailedError,
    ToolError,
)
from continuo.realtime.client.events import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Response,
    ServerEvent,
    Usage,
)
from continuo.realtime.client.response_stream import ResponseStream
from continuo.realtime.client.settings import ResponseSettings, SessionSettings
from continuo.realtime.client.tools import Tool

__all__ = [
    "ClientError",
    "ConnectionClosedError",
    "ConnectionOptions",
    "ConnectionState",
    "Conversation",
    "ConversationChange",
    "Draft",
    "EventRefusedError",
    "FunctionCall",
    "FunctionCallOutput",
    "Item",
    "ItemInserted",
    "ItemRemoved",
    "ItemUpdated",
    "ItemsReplaced",
    "Message",
    "RealtimeClient",
    "Response",
    "ResponseFailedError",
    "ResponseSettings",
    "ResponseStream",
    "ResponseUpdated",
    "ResumePoint",
    "ServerEvent",
    "SessionSettings",
    "TextAppended",
    "Tool",
    "ToolError",
    "Usage",
    "connect",
]

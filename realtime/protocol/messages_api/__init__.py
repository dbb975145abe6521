"""Anthropic's Messages API, text and tools: a whole history in, one message out.

body ───decode_body──▶ MessagesRequest ──decode_command──▶ CreateResponse
JSON, SSE ◀───────────── Message, events ◀──Encoder──────── Response, ResponseEvent
"""

from continuo.realtime.protocol.messages_api.decoder import decode_command
from continuo.realtime.protocol.messages_api.encoder import (
    Encoder,
    encode_error,
    encode_failure,
    encode_message,
)
from continuo.realtime.protocol.messages_api.requests import (
    CountTokensRequest,
    MessagesRequest,
    decode_body,
)

__all__ = [
    "CountTokensRequest",
    "Encoder",
    "MessagesRequest",
    "decode_body",
    "decode_command",
    "encode_error",
    "encode_failure",
    "encode_message",
]

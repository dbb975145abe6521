"""The OpenAI Responses API, text only; the same over a WebSocket and over HTTP.

frame, body ──codec──▶ client event ──decode_command──▶ CreateResponse
frame, SSE  ◀─codec─── server event ◀─────Encoder────── ResponseEvent
"""

from continuo.realtime.protocol.responses_api.client_events import (
    ResponseCancel,
    ResponseCreate,
    ResponseSteer,
)
from continuo.realtime.protocol.responses_api.codec import (
    decode_body,
    decode_frame,
    decode_input,
    encode_frame,
    encode_sse,
    extract_stream_id,
)
from continuo.realtime.protocol.responses_api.decoder import decode_command, decode_steering_input
from continuo.realtime.protocol.responses_api.encoder import (
    Encoder,
    encode_error,
    encode_item_page,
    encode_response,
)
from continuo.realtime.protocol.responses_api.server_events import InputTokens, ServerEvent

__all__ = [
    "Encoder",
    "InputTokens",
    "ResponseCancel",
    "ResponseCreate",
    "ResponseSteer",
    "ServerEvent",
    "decode_body",
    "decode_command",
    "decode_frame",
    "decode_input",
    "decode_steering_input",
    "encode_error",
    "encode_frame",
    "encode_item_page",
    "encode_response",
    "encode_sse",
    "extract_stream_id",
]

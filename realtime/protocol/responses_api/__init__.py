"""The vocabulary of the OpenAI Responses API, text; the same over a WebSocket and over HTTP.

frame, body ──codec──▶ Create ──hear──▶ GoOn          (core)
frame, SSE  ◀─codec─── event  ◀──say─── Told          (core)
"""

from continuo.realtime.protocol.responses_api.client_events import (
    EVENT_TYPES,
    Cancel,
    Create,
    Steer,
)
from continuo.realtime.protocol.responses_api.codec import (
    decode,
    decode_body,
    decode_input,
    encode,
    encode_sse,
    stream_id_of,
)
from continuo.realtime.protocol.responses_api.decoder import hear, steering
from continuo.realtime.protocol.responses_api.encoder import Voice, error_out, response_out
from continuo.realtime.protocol.responses_api.server_events import ServerEvent

__all__ = [
    "EVENT_TYPES",
    "Cancel",
    "Create",
    "ServerEvent",
    "Steer",
    "Voice",
    "decode",
    "decode_body",
    "decode_input",
    "encode",
    "encode_sse",
    "error_out",
    "hear",
    "response_out",
    "steering",
    "stream_id_of",
]

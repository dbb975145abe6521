"""SGLang's native API: token sessions, and turns on token ids.

body ───decode_body──▶ OpenSession, Generate, … ──decode_turns──▶ TurnRequest
JSON, SSE ◀─────────────── GenerateReply ◀──encode_reply── output
"""

from continuo.realtime.protocol.sglang_api.decoder import TurnRequest, decode_turns
from continuo.realtime.protocol.sglang_api.encoder import (
    GenerateReply,
    OutputSoFar,
    encode_reply,
    encode_reply_so_far,
    encode_sse,
)
from continuo.realtime.protocol.sglang_api.requests import (
    AbortRequest,
    CloseSession,
    Generate,
    OpenSession,
    decode_body,
)

__all__ = [
    "AbortRequest",
    "CloseSession",
    "Generate",
    "GenerateReply",
    "OpenSession",
    "OutputSoFar",
    "TurnRequest",
    "decode_body",
    "decode_turns",
    "encode_reply",
    "encode_reply_so_far",
    "encode_sse",
]

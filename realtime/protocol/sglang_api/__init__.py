"""SGLang's native API: token sessions, and turns on token ids.

body ───decode_body──▶ OpenSession, Generate, … ──decode_sampling──▶ Sampling
JSON, SSE ◀─────────────── GenerateReply ◀──encode_reply── output
"""

from continuo.realtime.protocol.sglang_api.decoder import decode_prompt, decode_sampling
from continuo.realtime.protocol.sglang_api.encoder import (
    GenerateReply,
    OutputSoFar,
    encode_reply,
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
    "decode_body",
    "decode_prompt",
    "decode_sampling",
    "encode_reply",
    "encode_sse",
]

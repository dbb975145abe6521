"""OpenAI's chat completions, text only: a whole history in, one response out.

body ───decode_body──▶ ChatCompletionRequest ──decode_command──▶ CreateResponse
JSON, SSE ◀───────── Completion, CompletionChunk ◀──Encoder───── Response, ResponseEvent
"""

from continuo.realtime.protocol.chat_api.decoder import decode_command
from continuo.realtime.protocol.chat_api.encoder import Encoder, encode_error
from continuo.realtime.protocol.chat_api.requests import ChatCompletionRequest, decode_body

__all__ = [
    "ChatCompletionRequest",
    "Encoder",
    "decode_body",
    "decode_command",
    "encode_error",
]

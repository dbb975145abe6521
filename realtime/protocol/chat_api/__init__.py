"""The vocabulary of OpenAI's chat completions, text: a whole history in, one answer out.

body ──decode──▶ Create ──hear──▶ GoOn          (core)
JSON, SSE ◀──────── chunk ◀──say─── Told        (core)
"""

from continuo.realtime.protocol.chat_api.decoder import decode_command, translate_refusal
from continuo.realtime.protocol.chat_api.encoder import Encoder, encode_error
from continuo.realtime.protocol.chat_api.requests import ChatCompletionRequest, decode_body

__all__ = [
    "ChatCompletionRequest",
    "Encoder",
    "decode_body",
    "decode_command",
    "encode_error",
    "translate_refusal",
]

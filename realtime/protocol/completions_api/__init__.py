"""OpenAI's legacy completions: raw text in, its continuation out, without a chat template.

body ───decode_body──▶ CompletionRequest ──decode_prompts, decode_sampling──▶ turns
JSON, SSE ◀────────────── Completion ◀── encode_completion, encode_chunk ─── output
"""

from continuo.realtime.protocol.completions_api.decoder import decode_prompts, decode_sampling
from continuo.realtime.protocol.completions_api.encoder import CompletionEncoder, Output
from continuo.realtime.protocol.completions_api.requests import CompletionRequest, decode_body

__all__ = [
    "CompletionEncoder",
    "CompletionRequest",
    "Output",
    "decode_body",
    "decode_prompts",
    "decode_sampling",
]

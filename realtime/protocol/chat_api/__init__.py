"""The vocabulary of OpenAI's chat completions, text: a whole history in, one answer out.

body ──decode──▶ Create ──hear──▶ GoOn          (core)
JSON, SSE ◀──────── chunk ◀──say─── Told        (core)
"""

from continuo.realtime.protocol.chat_api.decoder import hear, worded
from continuo.realtime.protocol.chat_api.encoder import Voice, failure
from continuo.realtime.protocol.chat_api.requests import Create, decode

__all__ = ["Create", "Voice", "decode", "failure", "hear", "worded"]

"""The vocabulary of OpenAI's chat completions, text: a whole history in, one answer out.

body ──decode──▶ Create ──hear──▶ GoOn          (core)
JSON, SSE ◀──────── chunk ◀──say─── Told        (core)
"""

from realtime.protocol.chat_api.client import Create, decode
from realtime.protocol.chat_api.hear import hear, worded
from realtime.protocol.chat_api.say import Voice, failure

__all__ = ["Create", "Voice", "decode", "failure", "hear", "worded"]

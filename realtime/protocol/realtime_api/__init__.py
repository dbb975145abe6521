"""The vocabulary of the OpenAI Realtime API (GA), text.

frame ──codec──▶ client event ──hear──▶ Ask          (core)
frame ◀─codec─── server event ◀──say─── Tell         (core)
"""

from realtime.protocol.realtime_api.client import ClientEvent, SessionIn
from realtime.protocol.realtime_api.codec import (
    CODECS,
    JSON,
    Codec,
    decode,
    encode,
    event_id_of,
    explain,
)
from realtime.protocol.realtime_api.hear import Farewell, NoAudio, hear, settings_of
from realtime.protocol.realtime_api.say import Voice
from realtime.protocol.realtime_api.server import ServerEvent

__all__ = [
    "CODECS",
    "JSON",
    "ClientEvent",
    "Codec",
    "Farewell",
    "NoAudio",
    "ServerEvent",
    "SessionIn",
    "Voice",
    "decode",
    "encode",
    "event_id_of",
    "explain",
    "hear",
    "settings_of",
]

"""The vocabulary of the OpenAI Realtime API (GA), text.

frame ──codec──▶ client event ──hear──▶ Ask          (core)
frame ◀─codec─── server event ◀──say─── Tell         (core)
"""

from continuo.realtime.protocol.realtime_api.client_events import ClientEvent, SessionIn
from continuo.realtime.protocol.realtime_api.codec import (
    CODECS,
    JSON,
    Codec,
    decode,
    encode,
    event_id_of,
    explain,
)
from continuo.realtime.protocol.realtime_api.decoder import Farewell, NoAudio, hear, settings_of
from continuo.realtime.protocol.realtime_api.encoder import Voice
from continuo.realtime.protocol.realtime_api.server_events import ServerEvent

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

"""The vocabulary of the OpenAI Realtime API (GA), text.

frame ──codec──▶ client event ──hear──▶ Ask          (core)
frame ◀─codec─── server event ◀──say─── Tell         (core)
"""

from realtime.protocol.realtime_api.client import ClientEvent
from realtime.protocol.realtime_api.codec import decode, encode, event_id_of
from realtime.protocol.realtime_api.hear import NoAudio, hear
from realtime.protocol.realtime_api.say import Voice
from realtime.protocol.realtime_api.server import ServerEvent

__all__ = [
    "ClientEvent",
    "NoAudio",
    "ServerEvent",
    "Voice",
    "decode",
    "encode",
    "event_id_of",
    "hear",
]

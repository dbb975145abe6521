"""The OpenAI Realtime API, text only: GA, and in the names of the beta (`beta`).

frame ──codec──▶ client event ──decode_command──▶ ConversationCommand
frame ◀─codec─── server event ◀─────Encoder────── ConversationEvent
"""

from continuo.realtime.protocol.realtime_api.beta import Dialect
from continuo.realtime.protocol.realtime_api.client_events import ClientEvent, SessionIn
from continuo.realtime.protocol.realtime_api.codec import (
    BETA_SUBPROTOCOL,
    SUBPROTOCOL,
    decode_frame,
    encode_frame,
    extract_event_id,
)
from continuo.realtime.protocol.realtime_api.decoder import (
    CloseRequest,
    IgnoredAudioEvent,
    audio_not_supported,
    decode_command,
    decode_session_settings,
)
from continuo.realtime.protocol.realtime_api.encoder import Encoder
from continuo.realtime.protocol.realtime_api.server_events import ServerEvent

__all__ = [
    "BETA_SUBPROTOCOL",
    "SUBPROTOCOL",
    "ClientEvent",
    "CloseRequest",
    "Dialect",
    "Encoder",
    "IgnoredAudioEvent",
    "ServerEvent",
    "SessionIn",
    "audio_not_supported",
    "decode_command",
    "decode_frame",
    "decode_session_settings",
    "encode_frame",
    "extract_event_id",
]

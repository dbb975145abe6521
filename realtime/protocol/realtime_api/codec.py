"""Codec between JSON frames and events. For any frame, `decode_frame` returns a client event or
raises BadFrame."""

import re
from collections.abc import Callable

import msgspec

from continuo.realtime.errors import BadFrame
from continuo.realtime.limits import FRAME_VALUES_MAX
from continuo.realtime.protocol.complexity_limits import count_values_over
from continuo.realtime.protocol.realtime_api.client_events import (
    EVENT_TYPES,
    ITEM_TYPES,
    ClientEvent,
    ClientEventId,
)
from continuo.realtime.protocol.realtime_api.server_events import ServerEvent
from continuo.realtime.protocol.validation import AllowedValues, decode_json

SUBPROTOCOL = "realtime"
"""The WebSocket subprotocol; selected if a client offers it."""
BETA_SUBPROTOCOL = "openai-beta.realtime-v1"
"""Subprotocol by which a browser announces the beta version of the API."""


class _Envelope(msgspec.Struct):
    """The `event_id` of a frame, decoded alone if the whole frame is invalid."""

    event_id: ClientEventId | None = None


_EVENT_ID = re.compile(r'"event_id"\s*:\s*"([^"\\]{1,512})"')
_ALLOWED_VALUES: AllowedValues = {
    "type": EVENT_TYPES,
    "item.type": ITEM_TYPES,
    "response.input[].type": (*ITEM_TYPES, "item_reference"),
    "session.type": ("realtime",),
    "item.role": ("system", "user", "assistant"),
    "response.input[].role": ("system", "user", "assistant"),
    "item.content[].type": ("input_text", "output_text", "input_audio"),
    "response.input[].content[].type": ("input_text", "output_text", "input_audio"),
    "session.output_modalities[]": ("text", "audio"),
    "response.output_modalities[]": ("text", "audio"),
    "session.max_output_tokens": ("inf", "an integer"),
    "response.max_output_tokens": ("inf", "an integer"),
    "session.tool_choice": ("auto", "none", "required", "an object"),
    "session.truncation": ("auto", "disabled", "an object"),
    "session.truncation.type": ("retention_ratio",),
    "response.tool_choice": ("auto", "none", "required", "an object"),
}
"""Allowed values of fields, by path, for errors about other values: msgspec's own errors do not
list these."""


_decoder = msgspec.json.Decoder(ClientEvent)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
encode_frame: Callable[[ServerEvent], bytes] = msgspec.json.Encoder().encode


def decode_frame(frame: str | bytes) -> ClientEvent:
    """Decode a frame. Raises BadFrame."""
    if count := count_values_over(frame, FRAME_VALUES_MAX):
        raise BadFrame(
            f"The frame holds {count:,} values or more; the limit is {FRAME_VALUES_MAX:,}.",
            code="frame_too_large",
            event_id=extract_event_id(frame),
        )
    try:
        return decode_json(_decoder, frame, "frame", _ALLOWED_VALUES)
    except BadFrame as refusal:
        refusal.event_id = extract_event_id(frame)
        raise


def extract_event_id(frame: str | bytes) -> str | None:
    """Find the client's event_id in a frame that may otherwise be invalid. Returns None if it
    cannot be read."""
    try:
        return _envelope_decoder.decode(frame).event_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    text = frame if isinstance(frame, str) else frame.decode(errors="replace")
    found = _EVENT_ID.search(text)
    return found[1] if found else None

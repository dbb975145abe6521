"""Codec between frames or bodies and events, in JSON. For any bytes, decoding returns a value or
raises BadFrame."""

import re

import msgspec

from continuo.realtime.protocol.responses_api import client_events
from continuo.realtime.protocol.responses_api.server_events import (
    ResponseOut,
    ResponseStreamEvent,
    ServerEvent,
)
from continuo.realtime.protocol.validation import AllowedValues, decode_json

_frame_decoder = msgspec.json.Decoder(client_events.ClientEvent)
_body_decoder = msgspec.json.Decoder(client_events.ResponseCreate)
_input_decoder = msgspec.json.Decoder(client_events.Input)
_encoder = msgspec.json.Encoder()
_STREAM_ID_SCAN_CHARS_MAX = 1024 * 1024
"""Maximum length of a refused frame that is parsed again to find its stream_id; in a longer one,
the stream_id is found by a text search."""
_STREAM_ID = re.compile(r'"stream_id"\s*:\s*"([^"\\]{1,128})"')

_ROLES = ("user", "assistant", "system", "developer")
_ALLOWED_VALUES: AllowedValues = {
    "type": client_events.EVENT_TYPES,
    "input[].role": _ROLES,
    "[].role": _ROLES,
    "tool_choice": ("auto", "none", "required", "an object"),
    "text.format.type": ("text", "json_object", "json_schema"),
    "text.verbosity": ("low", "medium", "high"),
    "truncation": ("auto", "disabled"),
}


class _Envelope(msgspec.Struct):
    """The `stream_id` of a frame, decoded alone if the whole frame is invalid."""

    stream_id: client_events.StreamId | None = None


_envelope_decoder = msgspec.json.Decoder(_Envelope)


def decode_frame(frame: str | bytes) -> client_events.ClientEvent:
    return decode_json(_frame_decoder, frame, "frame", _ALLOWED_VALUES)


def decode_body(body: bytes) -> client_events.ResponseCreate:
    """Decode the body of a request, in which `type` may be missing. Raises BadFrame."""
    return decode_json(_body_decoder, body, "body", _ALLOWED_VALUES)


def decode_input(raw: msgspec.Raw) -> client_events.Input:
    return decode_json(_input_decoder, bytes(raw), "input", _ALLOWED_VALUES)


def encode_frame(event: ServerEvent | ResponseOut) -> bytes:
    return _encoder.encode(event)


def encode_sse(event: ResponseStreamEvent) -> bytes:
    name = event.__struct_config__.tag
    return b"event: %s\ndata: %s\n\n" % (str(name).encode(), _encoder.encode(event))


def extract_stream_id(frame: str) -> str | None:
    """Find the stream_id in a frame that may otherwise be invalid. Returns None if it cannot be
    read."""
    if len(frame) <= _STREAM_ID_SCAN_CHARS_MAX:
        try:
            return _envelope_decoder.decode(frame).stream_id
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    at = frame.find('"stream_id"')
    found = _STREAM_ID.match(frame, at) if at >= 0 else None
    return found[1] if found else None

"""Frames and bodies to what clients ask, server events to frames. Whatever the bytes, decoding
gives a value or raises BadFrame."""

import re

import msgspec

from continuo.realtime.protocol.responses_api import client_events
from continuo.realtime.protocol.responses_api.server_events import (
    ResponseEvent,
    ResponseOut,
    ServerEvent,
)
from continuo.realtime.protocol.validation import Choices, decoded

_frame = msgspec.json.Decoder(client_events.ClientEvent)
_body = msgspec.json.Decoder(client_events.Create)
_input = msgspec.json.Decoder(client_events.Input)
_encoder = msgspec.json.Encoder()
_LOOKED_AT_CHARS_MAX = 1024 * 1024
"""A longer frame that was refused is not gone through once more."""
_STREAM_ID = re.compile(r'"stream_id"\s*:\s*"([^"\\]{1,128})"')

_ROLES = ("user", "assistant", "system", "developer")
_CHOICES: Choices = {
    "type": client_events.EVENT_TYPES,
    "input[].role": _ROLES,
    "[].role": _ROLES,
    "tool_choice": ("auto", "none", "required", "an object"),
    "text.format.type": ("text", "json_object", "json_schema"),
    "text.verbosity": ("low", "medium", "high"),
    "truncation": ("auto", "disabled"),
}


class _Envelope(msgspec.Struct):
    """What of a frame may be good even when the rest is bad."""

    stream_id: client_events.StreamId | None = None


_envelope = msgspec.json.Decoder(_Envelope)


def decode(frame: str | bytes) -> client_events.ClientEvent:
    return decoded(_frame, frame, "frame", _CHOICES)


def decode_body(body: bytes) -> client_events.Create:
    """`type` may be missing there, and must be right if it is not."""
    return decoded(_body, body, "body", _CHOICES)


def decode_input(raw: msgspec.Raw) -> client_events.Input:
    return decoded(_input, bytes(raw), "input", _CHOICES)


def encode(event: ServerEvent | ResponseOut) -> bytes:
    return _encoder.encode(event)


def encode_sse(event: ResponseEvent) -> bytes:
    name = event.__struct_config__.tag
    return b"event: %s\ndata: %s\n\n" % (str(name).encode(), _encoder.encode(event))


def stream_id_of(frame: str) -> str | None:
    """The lane, from a frame of which nothing else may be good."""
    if len(frame) <= _LOOKED_AT_CHARS_MAX:
        try:
            return _envelope.decode(frame).stream_id
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    at = frame.find('"stream_id"')
    found = _STREAM_ID.match(frame, at) if at >= 0 else None
    return found[1] if found else None

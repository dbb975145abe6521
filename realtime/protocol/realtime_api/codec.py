"""Frames to client events, server events to frames. Whatever the bytes, `decode` returns an event
or raises BadFrame."""

import re

import msgspec

from realtime.errors import BadFrame
from realtime.limits import FRAME_ELEMENTS_MAX
from realtime.protocol.explaining import Choices, elements, explain
from realtime.protocol.realtime_api.client import (
    EVENT_TYPES,
    ITEM_TYPES,
    ClientEvent,
    EventId,
)
from realtime.protocol.realtime_api.server import ServerEvent

_decoder = msgspec.json.Decoder(ClientEvent)
_encoder = msgspec.json.Encoder()


class _Envelope(msgspec.Struct):
    """What of a frame may be good even when the rest is bad."""

    type: object = None
    event_id: object = None


_envelope = msgspec.json.Decoder(_Envelope)
_EVENT_ID = re.compile(r'"event_id"\s*:\s*"([^"\\]{1,512})"')
_CHOICES: Choices = {
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
"""See explaining.Choices."""


def decode(frame: str | bytes) -> ClientEvent:
    count = elements(frame, FRAME_ELEMENTS_MAX)
    if count > FRAME_ELEMENTS_MAX:
        raise BadFrame(
            f"The frame holds {count:,} values; the limit is {FRAME_ELEMENTS_MAX:,}.",
            code="frame_too_large",
            event_id=event_id_of(frame),
        )
    try:
        return _decoder.decode(frame)
    except msgspec.ValidationError as error:
        message, code, param = explain(str(error), _CHOICES)
    except msgspec.DecodeError as error:
        message, code, param = f"The frame is not valid JSON: {error}.", "invalid_json", None
    except UnicodeDecodeError:
        message, code, param = "The frame is not valid UTF-8.", "invalid_json", None
    except RecursionError:
        message, code, param = "The frame is nested too deeply.", "invalid_json", None
    raise BadFrame(message, code=code, param=param, event_id=event_id_of(frame))


def encode(event: ServerEvent) -> bytes:
    return _encoder.encode(event)


def event_id_of(frame: str | bytes) -> str | None:
    """The client's event_id, from a frame of which nothing else may be good."""
    try:
        return msgspec.convert(_envelope.decode(frame).event_id, EventId)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    text = frame if isinstance(frame, str) else frame.decode(errors="replace")
    found = _EVENT_ID.search(text)
    return found[1] if found else None

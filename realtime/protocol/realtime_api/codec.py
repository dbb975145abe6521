"""Codecs between frames and events: JSON in text frames, or MessagePack in binary frames. For any
bytes, `decode` returns a client event or raises BadFrame."""

import json
import re
from collections.abc import Callable

import msgspec

from continuo.realtime.errors import BadFrame
from continuo.realtime.limits import FRAME_VALUES_MAX
from continuo.realtime.protocol.complexity_limits import count_json_values, count_msgpack_values
from continuo.realtime.protocol.realtime_api.client_events import (
    EVENT_TYPES,
    ITEM_TYPES,
    ClientEvent,
    ClientEventId,
    ResponseCreate,
    SessionUpdate,
)
from continuo.realtime.protocol.realtime_api.server_events import (
    ServerEvent,
    SessionCreated,
    SessionUpdated,
)
from continuo.realtime.protocol.validation import AllowedValues, explain


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


class Codec(msgspec.Struct, frozen=True, kw_only=True):
    """Encoding of events as frames, negotiated as a WebSocket subprotocol."""

    subprotocol: str
    is_binary: bool
    """Whether frames are binary."""
    name: str
    unreadable_code: str
    """Error code for a frame that cannot be parsed at all."""
    parse: Callable[[str | bytes], ClientEvent]
    """Parse a frame. Raises MsgspecError, ValueError (UnicodeDecodeError), TypeError or
    RecursionError."""
    find_event_id: Callable[[str | bytes], str | None]
    """Find the event_id in a frame. Raises the same errors as `parse`."""
    count_values: Callable[[str | bytes, int], int]
    """Estimate the number of values in a frame. The second argument is the limit: the estimate is
    above it only if the frame has too many values."""
    encode: Callable[[ServerEvent], bytes]

    def decode(self, frame: str | bytes) -> ClientEvent:
        """Decode a frame. Raises BadFrame."""
        count = self.count_values(frame, FRAME_VALUES_MAX)
        if count > FRAME_VALUES_MAX:
            raise BadFrame(
                f"The frame holds {count:,} values; the limit is {FRAME_VALUES_MAX:,}.",
                code="frame_too_large",
                event_id=self.extract_event_id(frame),
            )
        code, param = self.unreadable_code, None
        try:
            return self.parse(frame)
        except msgspec.ValidationError as error:
            message, code, param = explain(str(error), _ALLOWED_VALUES)
        except UnicodeDecodeError:
            message = "The frame is not valid UTF-8."
        except RecursionError:
            message = "The frame is nested too deeply."
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            message = f"The frame is not valid {self.name}: {error}."
        raise BadFrame(message, code=code, param=param, event_id=self.extract_event_id(frame))

    def extract_event_id(self, frame: str | bytes) -> str | None:
        """Find the client's event_id in a frame that may otherwise be invalid. Returns None if it
        cannot be read."""
        try:
            return self.find_event_id(frame)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return None


# ---------------------------------------------------------------- JSON

_read_json = msgspec.json.Decoder(ClientEvent).decode
_read_json_envelope = msgspec.json.Decoder(_Envelope).decode
_write_json = msgspec.json.Encoder().encode


def _find_json_event_id(frame: str | bytes) -> str | None:
    try:
        return _read_json_envelope(frame).event_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    text = frame if isinstance(frame, str) else frame.decode(errors="replace")
    found = _EVENT_ID.search(text)
    return found[1] if found else None


JSON = Codec(
    subprotocol="realtime",
    is_binary=False,
    name="JSON",
    unreadable_code="invalid_json",
    parse=_read_json,
    find_event_id=_find_json_event_id,
    count_values=count_json_values,
    encode=_write_json,
)
decode_frame, encode_frame, extract_event_id = JSON.decode, JSON.encode, JSON.extract_event_id


# ---------------------------------------------------------------- MessagePack

_read_packed = msgspec.msgpack.Decoder(ClientEvent).decode
_read_packed_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_write_packed = msgspec.msgpack.Encoder().encode


def _unpack(frame: str | bytes) -> ClientEvent:
    event = _read_packed(_require_bytes(frame))
    if isinstance(event, SessionUpdate | ResponseCreate):
        # Raises TypeError if a tool schema is not valid as JSON: a key is not a string, say.
        _write_json(event)
    return event


def _find_packed_event_id(frame: str | bytes) -> str | None:
    return _read_packed_envelope(_require_bytes(frame)).event_id


def _pack(event: ServerEvent) -> bytes:
    if isinstance(event, SessionCreated | SessionUpdated):  # its tool schemas are raw JSON
        return _write_packed(json.loads(_write_json(event), parse_int=_parse_integer))
    return _write_packed(event)


def _parse_integer(digits: str) -> int | float:
    """Parse an integer, as a float if MessagePack's 64 bits cannot hold it."""
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else float(digits)


def _require_bytes(frame: str | bytes) -> bytes:
    assert isinstance(frame, bytes), "text frames are refused earlier"
    return frame


MSGPACK = Codec(
    subprotocol="realtime.msgpack",
    is_binary=True,
    name="MessagePack",
    unreadable_code="invalid_msgpack",
    parse=_unpack,
    find_event_id=_find_packed_event_id,
    count_values=lambda frame, limit: count_msgpack_values(_require_bytes(frame), limit),
    encode=_pack,
)

CODECS = {codec.subprotocol: codec for codec in (JSON, MSGPACK)}
"""Codecs by their subprotocol."""

"""Frames to client events, server events to frames. Whatever the bytes, `decode` returns an event
or raises BadFrame."""

import re

import msgspec

from realtime.errors import BadFrame
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
_AT = re.compile(r" - at `(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
_INVALID = re.compile(r"^Invalid (?:enum )?value (?P<value>.*)$", re.DOTALL)
_BELOW = re.compile(r"^Expected `(?P<type>[^`]+)` (?P<sign>>=?) (?P<limit>\S+)$")
_ABOVE = re.compile(r"^Expected `(?P<type>[^`]+)` (?P<sign><=?) (?P<limit>\S+)$")
_LENGTH = re.compile(r"^Expected `(?P<type>[^`]+)` of length (?P<sign>[<>]=) (?P<limit>\d+)$")
_TYPE = re.compile(r"^Expected `(?P<want>[^`]+)`(?:, got `(?P<got>[^`]+)`)?$")
_INDEX = re.compile(r"\[[^]]*\]")

_CHOICES: dict[str, tuple[str, ...]] = {
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
"""What may stand where msgspec says only that a value is not one of the allowed."""


def decode(frame: str | bytes) -> ClientEvent:
    try:
        return _decoder.decode(frame)
    except msgspec.ValidationError as error:
        message, code, param = explain(str(error))
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


def explain(problem: str) -> tuple[str, str, str | None]:
    """msgspec's words to ours: (message, code, path of the field)."""
    path = ""
    if at := _AT.search(problem):
        path = at["path"].removeprefix("$").removeprefix(".")
        problem = problem[: at.start()]
    if match := _MISSING.match(problem):
        param = f"{path}.{match['field']}" if path else match["field"]
        return f"Missing required parameter: '{param}'.", "missing_required_parameter", param
    name = f"'{path}'" if path else "the frame"
    if match := _INVALID.match(problem):
        choices = _CHOICES.get(_INDEX.sub("[]", path), ())
        listed = f" Supported values are: {', '.join(map(repr, choices))}." if choices else ""
        value = match["value"][:200]
        return f"Invalid value for {name}: {value}.{listed}", "invalid_value", path or None
    if match := _LENGTH.match(problem):
        more = match["sign"] == "<="
        kind = {"str": "string", "object": "object"}.get(match["type"], "array")
        unit = {"string": "characters", "object": "keys"}.get(kind, "elements")
        bound = "above_max_length" if more else "below_min_length"
        words = f"at {'most' if more else 'least'} {match['limit']} {unit}"
        return f"Invalid {name}: expected {words}.", f"{kind}_{bound}", path or None
    if match := _BELOW.match(problem) or _ABOVE.match(problem):
        kind = "integer" if match["type"].startswith("int") else "decimal"
        bound = "below_min_value" if match["sign"].startswith(">") else "above_max_value"
        words = f"expected a value {match['sign']} {match['limit']}"
        return f"Invalid {name}: {words}.", f"{kind}_{bound}", path or None
    if match := _TYPE.match(problem):
        got = f", but got {match['got']}" if match["got"] else ""
        want = match["want"].replace(" | ", " or ")
        return f"Invalid type for {name}: expected {want}{got}.", "invalid_type", path or None
    return f"Invalid {name}: {problem[:200]}.", "invalid_value", path or None

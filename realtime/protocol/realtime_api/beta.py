"""The beta version of the Realtime API, in which some events and fields have other names. Pure.

session.update        no `type`; `modalities`, `max_response_output_tokens`
response.create       `modalities`
session               the same fields, and the audio settings beside them
response              `modalities`
response.text.*       is `response.output_text.*`
conversation.item.created   is `conversation.item.added`; there is no `conversation.item.done`
part of a message     of the type `text`, where GA has `output_text`

All else is the same. Events of the beta are translated to those of GA, and back, as JSON.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.limits import FRAME_VALUES_MAX
from continuo.realtime.protocol.complexity_limits import count_values_over
from continuo.realtime.protocol.realtime_api import server_events
from continuo.realtime.protocol.realtime_api.client_events import ClientEvent
from continuo.realtime.protocol.realtime_api.codec import decode_frame, encode_frame
from continuo.realtime.protocol.realtime_api.server_events import ServerEvent

_Json = dict[str, Any]


class Dialect:
    """The codec of a connection: of GA, until a client that announces the beta sends an event that
    only the beta has. Proxies announce it too, on behalf of clients that use GA."""

    __slots__ = ("_announces_beta", "is_beta")

    def __init__(self, *, announces_beta: bool) -> None:
        self._announces_beta = announces_beta
        self.is_beta = False

    def decode(self, frame: str) -> ClientEvent:
        """Decode a frame. Raises BadFrame, whose `param` is the path in GA."""
        if self._announces_beta and not self.is_beta:
            self.is_beta = is_beta_event(frame)
        return decode_frame(from_beta(frame) if self.is_beta else frame)

    def encode(self, event: ServerEvent) -> bytes | None:
        """Encode an event. Returns None if the client's version of the API does not have it."""
        return to_beta(event) if self.is_beta else encode_frame(event)


class _SessionHead(msgspec.Struct, frozen=True):
    type: object = UNSET


class _ResponseHead(msgspec.Struct, frozen=True):
    modalities: object = UNSET


class _Head(msgspec.Struct, frozen=True):
    """The fields of a client event that depend on the version of the API."""

    type: str
    session: _SessionHead | UnsetType = UNSET
    response: _ResponseHead | UnsetType | None = UNSET


_head_decoder = msgspec.json.Decoder(_Head)


def is_beta_event(frame: str) -> bool:
    """Whether a frame is a client event as only the beta has it."""
    head = _decode_head(frame)
    match head:
        case _Head(type="session.update", session=_SessionHead(type=kind)):
            return kind is UNSET
        case _Head(type="response.create", response=_ResponseHead(modalities=modalities)):
            return modalities is not UNSET
        case _:
            return False


def _decode_head(frame: str) -> _Head | None:
    if '"session.update"' not in frame and '"response.create"' not in frame:
        return None
    try:
        return _head_decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def from_beta(frame: str) -> str:
    """Translate a client event of the beta. Frames that need no translation, or that are not valid,
    are returned as they are."""
    head = _decode_head(frame)
    if head is None or count_values_over(frame, FRAME_VALUES_MAX):
        return frame
    event: _Json = msgspec.json.decode(frame)
    if head.type == "session.update" and isinstance(head.session, _SessionHead):
        session = event["session"]
        _rename(session, "modalities", "output_modalities")
        _rename(session, "max_response_output_tokens", "max_output_tokens")
        session.setdefault("type", "realtime")
    elif head.type == "response.create" and isinstance(head.response, _ResponseHead):
        _rename(event["response"], "modalities", "output_modalities")
        _rename(event["response"], "max_response_output_tokens", "max_output_tokens")
    else:
        return frame
    return msgspec.json.encode(event).decode()


def to_beta(event: ServerEvent) -> bytes | None:
    """Encode a server event as the beta has it. Returns None if the beta has no such event."""
    frame = encode_frame(event)
    match event:
        case server_events.ItemDone():
            return None
        case server_events.TextDelta() | server_events.TextDone():
            # The type is the first key.
            return frame.replace(b"response.output_text.", b"response.text.", 1)
        case server_events.ItemAdded():
            return _translate(
                frame.replace(b"conversation.item.added", b"conversation.item.created", 1)
            )
        case (
            server_events.SessionCreated()
            | server_events.SessionUpdated()
            | server_events.ResponseCreated()
            | server_events.ResponseDone()
            | server_events.ItemRetrieved()
            | server_events.OutputItemAdded()
            | server_events.OutputItemDone()
        ):
            return _translate(frame)
        case _:
            return frame


def _translate(frame: bytes) -> bytes:
    event: _Json = msgspec.json.decode(frame)
    if "session" in event:
        _session_to_beta(event["session"])
    if "item" in event:
        _item_to_beta(event["item"])
    if "response" in event:
        _response_to_beta(event["response"])
    return msgspec.json.encode(event)


def _session_to_beta(session: _Json) -> None:
    del session["type"]
    _rename(session, "output_modalities", "modalities")
    _rename(session, "max_output_tokens", "max_response_output_tokens")
    voice = session.pop("audio")["output"]["voice"]
    session.update(
        voice=voice,
        input_audio_format="pcm16",
        output_audio_format="pcm16",
        input_audio_transcription=None,
        turn_detection=None,
    )


def _response_to_beta(response: _Json) -> None:
    _rename(response, "output_modalities", "modalities")
    response["voice"] = response.pop("audio")["output"]["voice"]
    response["output_audio_format"] = "pcm16"
    for item in response["output"]:
        _item_to_beta(item)


def _item_to_beta(item: _Json) -> None:
    for part in item.get("content", ()):
        if part["type"] == "output_text":
            part["type"] = "text"


def _rename(fields: _Json, name: str, to: str) -> None:
    if name in fields:
        fields[to] = fields.pop(name)

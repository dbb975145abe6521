"""Validation: a caller's arguments as a command that the link can carry. Knows no session.

A value of another type than its field's would be found by the engine only, or break the encoding
of commands of other sessions in the same frame.
"""

import functools
import operator
import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from continuo.engine.errors import BadRequest, TooLong
from continuo.engine.wire.messages import AnyCommand

COMMAND_BYTES_MAX = 32 << 20
"""Bytes of one encoded command: far more than a long context takes, far less than a frame."""

_Sent = TypeVar("_Sent", bound=AnyCommand)
_encoder = msgspec.msgpack.Encoder(enc_hook=operator.index)  # numpy's ints are ints
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
_PLACE = re.compile(r"\$((?:\.\w+|\[\.*\d*\])*)")


def token_ids(ids: Iterable[int], length_max: int, field: str = "ids") -> list[int]:
    """`ids` as a list. Raises TooLong, before its elements are looked at, for more ids than any
    session holds."""
    try:
        found = list(ids)
    except TypeError:
        raise BadRequest(f"{field} must be a list of ints", field=field) from None
    if len(found) > length_max:
        raise TooLong(
            f"{field} has {len(found)} tokens; the session holds {length_max} at most", field=field
        )
    return found


def sendable(command: _Sent) -> _Sent:
    """The command as the engine will decode it. Raises BadRequest that names the field whose value
    has the wrong type, or is too large."""
    try:
        data = _encoder.encode(command)
    except _UNENCODABLE as error:
        field = _broken(command)
        raise BadRequest(f"{field} cannot be sent: {error}", field=field) from None
    if len(data) > COMMAND_BYTES_MAX:
        raise BadRequest(f"the command has {len(data)} bytes; at most {COMMAND_BYTES_MAX} are sent")
    try:
        return _decoder(type(command)).decode(data)
    except msgspec.ValidationError as error:
        found = _PLACE.search(str(error))
        field = found[1].partition("[")[0].rpartition(".")[2] if found else None
        raise BadRequest(str(error), field=field or None) from None


@functools.cache
def _decoder(kind: type[_Sent]) -> "msgspec.msgpack.Decoder[_Sent]":
    return msgspec.msgpack.Decoder(kind)


def _broken(message: msgspec.Struct) -> str | None:
    """The field, however deep, that cannot be encoded."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        try:
            _encoder.encode(value)
        except _UNENCODABLE:
            return (_broken(value) if isinstance(value, msgspec.Struct) else None) or name
    return None

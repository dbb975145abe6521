"""Validation of a caller's arguments against the types and bounds of a command, independent of
sessions.

Without this check, a value of the wrong type would be detected only by the engine, or would make
the encoding of a frame fail together with the commands of other sessions in it.
"""

import functools
import operator
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from continuo.engine.errors import BadRequest, TooLong
from continuo.engine.wire.bounds import find_field
from continuo.engine.wire.messages import EngineCommand

COMMAND_BYTES_MAX = 32 << 20
"""Maximum size of one encoded command: far above the size of a long context, far below the limit of
a frame."""

_CommandT = TypeVar("_CommandT", bound=EngineCommand)
_encoder = msgspec.msgpack.Encoder(enc_hook=operator.index)  # accept numpy's integers as ints
_ENCODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


def list_token_ids(ids: Iterable[int], length_max: int, field: str = "ids") -> list[int]:
    """Return `ids` as a list. Raises TooLong for more ids than any session holds, before their
    types are checked, and BadRequest if `ids` is not iterable."""
    try:
        found = list(ids)
    except TypeError:
        raise BadRequest(f"{field} must be a list of ints", field=field) from None
    if len(found) > length_max:
        raise TooLong(
            f"{field} has {len(found)} tokens; the session holds {length_max} at most", field=field
        )
    return found


def validate_command(command: _CommandT) -> _CommandT:
    """Return the command as the engine will decode it. Raises BadRequest, with the name of the
    field, for a value of the wrong type, and for a command over COMMAND_BYTES_MAX."""
    try:
        data = _encoder.encode(command)
    except _ENCODE_ERRORS as error:
        field = _find_unencodable(command)
        raise BadRequest(f"{field} cannot be sent: {error}", field=field) from None
    if len(data) > COMMAND_BYTES_MAX:
        raise BadRequest(f"the command has {len(data)} bytes; at most {COMMAND_BYTES_MAX} are sent")
    try:
        return _get_decoder(type(command)).decode(data)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error), field=find_field(str(error))) from None


@functools.cache
def _get_decoder(kind: type[_CommandT]) -> "msgspec.msgpack.Decoder[_CommandT]":
    return msgspec.msgpack.Decoder(kind)


def _find_unencodable(message: msgspec.Struct) -> str | None:
    """Return the name of the first field, at any depth, that cannot be encoded; None if all can."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        try:
            _encoder.encode(value)
        except _ENCODE_ERRORS:
            return (_find_unencodable(value) if isinstance(value, msgspec.Struct) else None) or name
    return None

"""Encoding of stored values. Pure.

A value is stored as MessagePack, deflated if that is shorter. A deflated value begins with the byte
0x78, MessagePack of an array or map with 0x80 or more."""

import hashlib
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_DEFLATED_BYTES_MIN = 256
"""Size of the smallest value that is deflated; smaller ones do not become shorter."""
_ZLIB_MAGIC = b"\x78"

_encode = msgspec.msgpack.Encoder().encode


def encode(value: Any) -> bytes:
    """Encode a struct, or another value that is an array or map in MessagePack."""
    data = _encode(value)
    if len(data) < _DEFLATED_BYTES_MIN:
        return data
    deflated = zlib.compress(data, 1)  # the fastest level: the largest item takes under 10 ms
    return deflated if len(deflated) < len(data) else data


def decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """Decode what `encode` returns. Raises msgspec.ValidationError."""
    return decoder.decode(zlib.decompress(data) if data.startswith(_ZLIB_MAGIC) else data)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Encode token ids for the journal: 4 bytes each, little-endian, so that scripts can cut
    them."""
    return _to_little_endian(array("I", ids)).tobytes()


def join_ids(chunks: Sequence[tuple[int, bytes]]) -> tuple[int, ...]:
    """Join journaled chunks, given in any order and without gaps: pairs of the offset of the first
    id, and the packed ids."""
    ids = array("I", b"".join(data for _, data in sorted(chunks)))
    return tuple(_to_little_endian(ids))


def digest(data: bytes) -> bytes:
    """Return a digest of 8 bytes. That is enough: the requests of a client can collide only with
    each other, and so only by chance."""
    return hashlib.blake2b(data, digest_size=8).digest()


def _to_little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids

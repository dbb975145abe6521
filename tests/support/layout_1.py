"""Stored values of layout 1, which the product only reads: how its last version encoded them."""

import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from continuo.realtime.store import layout_v1

_BITS_MIN = 9


def pack(data: bytes) -> bytes:
    deflate = zlib.compressobj(6, wbits=-15, zdict=layout_v1._DICTIONARY)
    deflated = deflate.compress(data) + deflate.flush()
    return b"\1" + deflated if len(deflated) < len(data) else b"\0" + data


def pack_json(value: Any) -> bytes:
    return pack(msgspec.json.encode(value))


def pack_entry(body: bytes, ids: Sequence[int] = ()) -> bytes:
    largest = max(ids, default=0)
    width = 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4
    packed = _pack_ids(ids, width)
    if width > 2 and largest < 0x110000 - 0x800:
        codes = [chr(id if id < 0xD800 else id + 0x800) for id in ids]
        utf16 = "".join(codes).encode("utf-16-le")
        if len(utf16) < len(packed):
            width, packed = 1, utf16
    bits = _pack_bits(ids, max(largest.bit_length(), _BITS_MIN))
    if len(bits) < len(packed):
        width, packed = 0, bits
    size = (len(packed).bit_length() + 7) // 8
    return bytes((16 * size + width,)) + len(packed).to_bytes(size, "little") + packed + pack(body)


def _pack_ids(ids: Sequence[int], width: int) -> bytes:
    packed = bytearray(array("H" if width == 2 else "I", ids).tobytes())
    if width == 3:
        del packed[3::4]
    return bytes(packed)


def _pack_bits(ids: Sequence[int], bits: int) -> bytes:
    if not ids:
        return b""
    size = -(-len(ids) * bits // 8)
    digits = "".join([f"{id:0{bits}b}" for id in ids]).ljust(8 * size, "0")
    return bytes((bits,)) + int(digits, 2).to_bytes(size, "big")

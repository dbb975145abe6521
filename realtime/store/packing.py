"""Entries and other bytes, made small. Pure.

    entry:  width (2, 3 or 4 bytes an id) │ number of ids, 4 bytes │ ids, little-endian │ blob
    blob:   0 │ bytes as they are      1 │ deflated with the dictionary below

Short texts do not deflate by themselves; with a dictionary of what items look like they do. A
stored blob needs the very dictionary it was made with: another one gets another number.
"""

import hashlib
import sys
import zlib
from array import array
from collections.abc import Sequence

import msgspec

from realtime.store.base import Entry, Kept

_DICTIONARY = (
    b" people because really could should there their about which would think first after before "
    b"where other than then these some when your have will from they been more also what with this "
    b"that just like know make time good want please thanks Sorry I'm don't it's you're can't "
    b"Let me Here is the a list of steps: however, for example, in order to one of the as well as "
    b"is not are you can do it was on the and the to the in the of the . The , and , but "
    b'"description":"","type":"object","properties":{},"required":["type":"string"'
    b'"name":"","arguments":"{\\"","call_id":"call_","output":"{\\"'
    b'"tools":[],"tool_choice":{"mode":"auto","name":null},"max_output_tokens":null,'
    b'"sampling":{"max_tokens":null,"temperature":0.8,"top_k":0,"top_p":1.0,"seed":null},'
    b'"instructions":"You are a helpful assistant.","metadata":null,"extras":"{}"'
    b'{"type":"function_call_output","id":"item_","status":"incomplete"'
    b'{"type":"function_call","id":"item_","status":"in_progress"'
    b'"answer":"resp_","sampled":null,"items":[{"type":"message","id":"item_","role":"assistant",'
    b'"parts":[{"kind":"output_text","text":"","role":"user","parts":[{"kind":"input_text",'
    b'"text":"I "}],"status":"completed"}]'
)
_QUICK_BYTES = 16 * 1024
"""Longer ones are deflated with less effort: under 10 ms for the largest item there may be."""
_TYPES = {2: "H", 4: "I"}


def pack(data: bytes) -> bytes:
    level = 6 if len(data) <= _QUICK_BYTES else 1
    deflate = zlib.compressobj(level, wbits=-15, zdict=_DICTIONARY)
    small = deflate.compress(data) + deflate.flush()
    return b"\1" + small if len(small) < len(data) else b"\0" + data


def unpack(blob: bytes) -> bytes:
    kind, data = blob[:1], blob[1:]
    if kind == b"\0":
        return data
    assert kind == b"\1", "a blob says how it was packed"
    return zlib.decompressobj(wbits=-15, zdict=_DICTIONARY).decompress(data)


def pack_entry(entry: Entry) -> bytes:
    top = max(entry.ids, default=0)
    width = 2 if top < 1 << 16 else 3 if top < 1 << 24 else 4
    head = bytes((width,)) + len(entry.ids).to_bytes(4, "little")
    return head + pack_ids(entry.ids, width) + pack(entry.body)


def unpack_entry(data: bytes) -> Entry:
    width, count = data[0], int.from_bytes(data[1:5], "little")
    end = 5 + width * count
    return Entry(unpack(data[end:]), unpack_ids(data[5:end], width))


def pack_ids(ids: Sequence[int], width: int = 4) -> bytes:
    packed = bytearray(_little(array(_TYPES.get(width, "I"), ids)).tobytes())
    if width == 3:
        del packed[3::4]
    return bytes(packed)


def unpack_ids(data: bytes, width: int = 4) -> tuple[int, ...]:
    if width == 3:
        wide = bytearray(len(data) // 3 * 4)
        for byte in range(3):
            wide[byte::4] = data[byte::3]
        data = bytes(wide)
    ids: array[int] = array(_TYPES.get(width, "I"))
    ids.frombytes(data)
    return tuple(_little(ids))


def join_ids(chunks: Sequence[tuple[int, bytes]]) -> tuple[int, ...]:
    """Journalled chunks (first, ids of 4 bytes) in any order; they may overlap."""
    whole = bytearray()
    for first, data in sorted(chunks):
        whole[4 * first : 4 * first + len(data)] = data
    return unpack_ids(bytes(whole))


def pack_kept(kept: Kept) -> bytes:
    entries = [pack_entry(entry) for entry in kept.entries]
    return msgspec.msgpack.encode((kept.tenant, kept.parent, entries, pack(kept.body)))


def unpack_kept(response: str, data: bytes) -> Kept:
    kind = tuple[str, str | None, list[bytes], bytes]
    tenant, parent, entries, body = msgspec.msgpack.decode(data, type=kind)
    return Kept(
        id=response,
        tenant=tenant,
        parent=parent,
        entries=tuple(unpack_entry(entry) for entry in entries),
        body=unpack(body),
    )


def digest(data: bytes) -> bytes:
    """8 bytes. Clients name and repeat only what is their own: chance is the only adversary."""
    return hashlib.blake2b(data, digest_size=8).digest()


def _little(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids

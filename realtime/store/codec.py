"""Compact encoding of entries and other bytes. Pure.

    entry:  one byte: 16 S + W │ length of the ids in S bytes │ ids │ body, as a blob
            W = 2, 3, 4: bytes per id      W = 1: UTF-16, frequent ids in 2 bytes, others in 4
            W = 0: one byte with the bits per id, then the bits of the ids, highest bit first,
            padded with zeros at the end
            all integers but those of W = 0 are little-endian
    blob:   0 │ raw bytes      1 │ bytes deflated with the dictionary below

Short texts do not compress by themselves; with a dictionary of typical items they do. A stored blob
can be read only with the dictionary that deflated it: another dictionary needs another first byte.
"""

import hashlib
import sys
import zlib
from array import array
from collections.abc import Sequence

import msgspec

from continuo.realtime.store.base import Entry, StoredResponse

_DICTIONARY = (
    b" able about above after again against ago all almost already also although always am "
    b"among and another any anything are around ask at away back be because been before being "
    b"below best better between big both bring but by call came can change come could day did "
    b"different do does doing done down during each early either else end enough even ever "
    b"every everything example exactly explain fact far few find fine first five follow "
    b"following for found four from full gave get give go going good got great had half happen"
    b" has have he help her here high him his home hope hour how however i idea if important "
    b"in instead into is it its just keep kind know large last late later learn least leave "
    b"left less let life like little live long look lot made main make many may maybe me mean "
    b"might minutes money month more most much must my name need never new next nice night no "
    b"not nothing now number of off often old on once one only open or order other our out "
    b"over own part people perhaps place plan please point possible problem provide put "
    b"question quite rather read ready really reason remember right run said same say second "
    b"see seem set several shall she short should show side simple since small so some someone"
    b" something soon sorry start still stop such sure take talk tell than thank that the "
    b"their them then there these they thing think this those though three through time to "
    b"today together tomorrow too try turn two under understand until up us use used using "
    b"usually very want was water way we week well were what when where which while who why "
    b"will with without word work world would wrong year yes yet you your "
    b"I don't know it's you're can't that's I'm I'll Let me know if you have Could you tell "
    b"me Can you help me with What is the How do I How about Thank you Of course! Sure, Yes, "
    b"No, Here is a list of steps: For example, in order to one of the as well as if you want "
    b"to you can I would like is not are there it was on the and the to the in the of the for "
    b"the with the at the from the be a is a . The . I . It . You , and , but , which ing ed "
    b"ly er tion ment able ness ous 's n't "
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
_FAST_DEFLATE_BYTES = 16 * 1024
"""Size above which data is deflated at the fastest level, so that the largest allowed item takes
under 10 ms."""
_SURROGATES, _SURROGATES_COUNT = 0xD800, 0x800
_UTF16_IDS = 0x110000 - _SURROGATES_COUNT
_ARRAY_TYPES = {2: "H", 4: "I"}
_BITS_MIN = 9
"""Minimum bits per id. Must be more than the padding (at most 7 bits), so that the number of ids
follows from the length."""


def pack(data: bytes) -> bytes:
    level = 6 if len(data) <= _FAST_DEFLATE_BYTES else 1
    deflate = zlib.compressobj(level, wbits=-15, zdict=_DICTIONARY)
    deflated = deflate.compress(data) + deflate.flush()
    return b"\1" + deflated if len(deflated) < len(data) else b"\0" + data


def unpack(blob: bytes) -> bytes:
    kind, data = blob[:1], blob[1:]
    if kind == b"\0":
        return data
    assert kind == b"\1", "a blob is raw or deflated"
    return zlib.decompressobj(wbits=-15, zdict=_DICTIONARY).decompress(data)


def pack_entry(entry: Entry) -> bytes:
    ids = entry.ids
    largest = max(ids, default=0)
    width = 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4
    packed = pack_ids(ids, width)
    if width > 2 and largest < _UTF16_IDS:
        utf16 = _encode_utf16(ids)
        if len(utf16) < len(packed):
            width, packed = 1, utf16
    bits = _encode_bits(ids, max(largest.bit_length(), _BITS_MIN))
    if len(bits) < len(packed):
        width, packed = 0, bits
    size = (len(packed).bit_length() + 7) // 8
    return (
        bytes((16 * size + width,))
        + len(packed).to_bytes(size, "little")
        + packed
        + pack(entry.body)
    )


def unpack_entry(data: bytes) -> Entry:
    size, width = divmod(data[0], 16)
    start = 1 + size
    end = start + int.from_bytes(data[1:start], "little")
    packed = data[start:end]
    return Entry(unpack(data[end:]), _decode_ids(packed, width))


def _decode_ids(packed: bytes, width: int) -> tuple[int, ...]:
    match width:
        case 0:
            return _decode_bits(packed)
        case 1:
            return _decode_utf16(packed)
        case _:
            return unpack_ids(packed, width)


def _encode_bits(ids: Sequence[int], bits: int) -> bytes:
    size = -(-len(ids) * bits // 8)
    if not ids:
        return b""
    digits = "".join([f"{id:0{bits}b}" for id in ids]).ljust(8 * size, "0")
    return bytes((bits,)) + int(digits, 2).to_bytes(size, "big")


def _decode_bits(packed: bytes) -> tuple[int, ...]:
    bits, size = packed[0], len(packed) - 1
    digits = f"{int.from_bytes(packed[1:], 'big'):0{8 * size}b}"
    count = 8 * size // bits
    return tuple([int(digits[n * bits : (n + 1) * bits], 2) for n in range(count)])


def _encode_utf16(ids: Sequence[int]) -> bytes:
    """Encode each id as one Unicode character. Surrogates are not characters, so ids from the first
    surrogate on are shifted past the last one."""
    return "".join([chr(id if id < _SURROGATES else id + _SURROGATES_COUNT) for id in ids]).encode(
        "utf-16-le"
    )


def _decode_utf16(data: bytes) -> tuple[int, ...]:
    codes = map(ord, data.decode("utf-16-le"))
    return tuple([code if code < _SURROGATES else code - _SURROGATES_COUNT for code in codes])


def pack_ids(ids: Sequence[int], width: int = 4) -> bytes:
    packed = bytearray(_to_little_endian(array(_ARRAY_TYPES.get(width, "I"), ids)).tobytes())
    if width == 3:
        del packed[3::4]
    return bytes(packed)


def unpack_ids(data: bytes, width: int = 4) -> tuple[int, ...]:
    if width == 3:
        wide = bytearray(len(data) // 3 * 4)
        for byte in range(3):
            wide[byte::4] = data[byte::3]
        data = bytes(wide)
    ids: array[int] = array(_ARRAY_TYPES.get(width, "I"))
    ids.frombytes(data)
    return tuple(_to_little_endian(ids))


def join_ids(chunks: Sequence[tuple[int, bytes]]) -> tuple[int, ...]:
    """Join journaled chunks, given in any order and without gaps: pairs of the offset of the first
    id, and the ids, packed in 4 bytes each."""
    return unpack_ids(b"".join(data for _, data in sorted(chunks)))


def pack_response(response: StoredResponse) -> bytes:
    entries = [pack_entry(entry) for entry in response.entries]
    return msgspec.msgpack.encode((response.tenant, response.parent, entries, pack(response.body)))


def unpack_response(response_id: str, data: bytes) -> StoredResponse:
    kind = tuple[str, str | None, list[bytes], bytes]
    tenant, parent, entries, body = msgspec.msgpack.decode(data, type=kind)
    return StoredResponse(
        id=response_id,
        tenant=tenant,
        parent=parent,
        entries=tuple(unpack_entry(entry) for entry in entries),
        body=unpack(body),
    )


def digest(data: bytes) -> bytes:
    """Return a digest of 8 bytes. That is enough: the requests of a client can collide only with
    each other, and so only by chance."""
    return hashlib.blake2b(data, digest_size=8).digest()


def _to_little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids

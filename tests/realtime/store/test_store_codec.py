"""Tests of the store codec: encoded values decode to themselves, and are small."""

from array import array
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.store.codec import decode, encode, join_ids, pack_ids

IDS = st.lists(st.integers(0, (1 << 31) - 1)) | st.lists(st.integers(0, 150_000))
ANY: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()


@given(texts=st.lists(st.text()), data=st.binary(max_size=2000), ids=IDS)
def test_encoded_value_decodes_to_itself(texts: list[str], data: bytes, ids: list[int]) -> None:
    for value in ([*texts], {"data": data}, ids, [data, texts, ids]):
        assert decode(ANY, encode(value)) == value
        assert len(encode(value)) <= len(msgspec.msgpack.encode(value))


def test_long_value_is_deflated_and_a_short_one_is_plain_messagepack() -> None:
    long, short = ["a sentence that is repeated"] * 20, ["a sentence that is not"]
    assert len(encode(long)) < len(msgspec.msgpack.encode(long)) / 8
    assert encode(short) == msgspec.msgpack.encode(short)


@given(ids=IDS, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_journal_chunks_join_in_any_order(ids: list[int], cuts: list[int]) -> None:
    starts = sorted({0, *(cut for cut in cuts if cut < len(ids))})
    chunks = [
        (start, pack_ids(ids[start:end]))
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)
    ]
    assert join_ids(chunks[::-1]) == tuple(ids)


def test_packed_ids_are_little_endian() -> None:
    assert pack_ids((1, 256)) == b"\1\0\0\0\0\1\0\0"
    assert array("I").itemsize == 4

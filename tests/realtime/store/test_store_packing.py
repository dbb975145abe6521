"""Tests of the store codec: packed data unpacks to itself, and is small."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.store import Entry, StoredResponse
from continuo.realtime.store.codec import (
    join_ids,
    pack,
    pack_entry,
    pack_ids,
    pack_response,
    unpack,
    unpack_entry,
    unpack_response,
)

ITEM = (
    b'[{"type":"message","id":"item_0f3a9c11d2b3a4958677","role":"user","parts":[{"kind":'
    b'"input_text","text":"Could you tell me how long it takes to walk there?"}],'
    b'"status":"completed"}]'
)
IDS = st.lists(st.integers(0, (1 << 31) - 1)) | st.lists(st.integers(0, 150_000))


@given(body=st.binary(), ids=IDS)
def test_packed_entry_unpacks_to_itself(body: bytes, ids: list[int]) -> None:
    entry = Entry(body, tuple(ids))
    assert unpack_entry(pack_entry(entry)) == entry


@given(data=st.binary() | st.text().map(str.encode))
def test_packed_bytes_grow_by_at_most_one(data: bytes) -> None:
    assert unpack(pack(data)) == data
    assert len(pack(data)) <= len(data) + 1


@given(ids=IDS, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_journal_chunks_join_in_any_order(ids: list[int], cuts: list[int]) -> None:
    starts = sorted({0, *(cut for cut in cuts if cut < len(ids))})
    chunks = [
        (start, pack_ids(ids[start:end]))
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)
    ]
    assert join_ids(chunks[::-1]) == tuple(ids)


def test_packed_id_takes_about_as_many_bits_as_its_value() -> None:
    empty = len(pack_entry(Entry(b"")))
    for bits in (8, 9, 11, 12, 15, 16, 17, 23, 24, 25, 31, 32):
        ids = ((1 << bits) - 1,) * 50
        packed = len(pack_entry(Entry(b"", ids))) - empty
        assert packed <= 50 * -(-bits // 8) + 1 or bits < 9
        assert packed <= -(-50 * max(bits, 9) // 8) + 2
        assert unpack_entry(pack_entry(Entry(b"", ids))) == Entry(b"", ids)
    frequent = (*range(49), 70_000)
    assert len(pack_entry(Entry(b"", frequent))) - empty == 49 * 2 + 4 + 1


@given(ids=st.lists(st.integers(0xD700, 0xE100) | st.integers(0x10F000, 0x111000), min_size=9))
def test_ids_near_the_surrogates_unpack_to_themselves(ids: list[int]) -> None:
    entry = Entry(b"", (*range(99), *ids))
    assert unpack_entry(pack_entry(entry)) == entry


def test_packed_short_item_is_less_than_half_as_long() -> None:
    assert len(pack(ITEM)) < len(ITEM) / 2


def test_entry_stored_by_an_older_version_can_be_read() -> None:
    """The compression dictionary and the layout are part of every stored session.

    A new dictionary needs a new number in the first byte, and the old dictionary stays.
    """
    stored = bytes.fromhex(STORED_ENTRY_HEX)
    assert unpack_entry(stored) == Entry(ITEM, (5, 70_000))


def test_packed_ids_are_little_endian() -> None:
    assert pack_ids((1, 256)) == b"\1\0\0\0\0\1\0\0"
    assert array("I").itemsize == 4
    assert array("H").itemsize == 2


@given(parent=st.none() | st.text(), body=st.binary(), ids=st.lists(IDS, max_size=3))
def test_packed_response_unpacks_to_itself(
    parent: str | None, body: bytes, ids: list[list[int]]
) -> None:
    entries = tuple(Entry(body, tuple(each)) for each in ids)
    response = StoredResponse(id="resp_1", tenant="acme", parent=parent, entries=entries, body=body)
    assert unpack_response("resp_1", pack_response(response)) == response


STORED_ENTRY_HEX = (
    "130605000070110101c3ef568334e344cb6443c314a324e344134b530b337373f2dc805978812a36709b0498"
    "e141155131288f97832b235039608fdbcd00"
)

"""Arrays that are encoded as they grow."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from continuo.realtime.protocol.encoded_array import EncodedArray

ELEMENTS = st.lists(st.text() | st.integers(-9, 9) | st.lists(st.none(), max_size=2), max_size=3)


@given(st.lists(st.tuples(ELEMENTS, st.booleans())))
def test_array_is_that_of_all_elements_and_its_new_part_that_of_those_since(
    steps: list[tuple[list[object], bool]],
) -> None:
    array, every, new = EncodedArray(), list[object](), list[object]()
    for elements, is_taken in steps:
        array.add(elements)
        every += elements
        new += elements
        if is_taken:
            assert msgspec.json.decode(array.take_new()) == new
            new = []
        assert msgspec.json.decode(array.read()) == every

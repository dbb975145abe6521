"""Tests of the footprint of the soak."""

import msgspec

from tests.faults.soaking import GROWTH_BYTES_MAX, GROWTH_FDS_MAX, Footprint

EARLIER = Footprint({"gateway 0": 1_000_000}, {"gateway 0": 20}, frozenset({"a"}), 3)


def test_growth_within_the_limits_is_none() -> None:
    later = Footprint(
        {"gateway 0": 1_000_000 + GROWTH_BYTES_MAX},
        {"gateway 0": 20 + GROWTH_FDS_MAX},
        frozenset(),
        900,
    )
    assert later.growth_since(EARLIER) == []


def test_each_growth_above_its_limit_is_named() -> None:
    later = msgspec.structs.replace(
        EARLIER,
        resident_bytes={"gateway 0": 1_000_001 + GROWTH_BYTES_MAX},
        fds={"gateway 0": 21 + GROWTH_FDS_MAX},
        keys=frozenset({"a", "b"}),
    )
    assert later.growth_since(EARLIER) == [
        "key b",
        f"gateway 0: {GROWTH_BYTES_MAX + 1:,} bytes",
        f"gateway 0: {GROWTH_FDS_MAX + 1} file descriptors",
    ]

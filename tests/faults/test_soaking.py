"""Tests of the footprint of the soak."""

import msgspec

from continuo.engine import CacheSize
from tests.faults.soaking import GROWTH_BYTES_MAX, GROWTH_FDS_MAX, Footprint

EARLIER = Footprint(
    {"gateway 0": 1_000_000},
    {"gateway 0": {"encodings": CacheSize(500, 9_000), "renderings": CacheSize(0, 700)}},
    {"gateway 0": 20},
    frozenset({"a"}),
    3,
)


def test_growth_within_the_limits_is_none() -> None:
    later = Footprint(
        {"gateway 0": 1_000_000 + 9_200 - 500 + GROWTH_BYTES_MAX},
        {"gateway 0": {"encodings": CacheSize(9_000, 9_000), "renderings": CacheSize(200, 700)}},
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
        f"gateway 0: {GROWTH_BYTES_MAX + 1:,} bytes outside of caches",
        f"gateway 0: {GROWTH_FDS_MAX + 1} file descriptors",
    ]


def test_cache_above_its_bound_is_growth_whatever_the_memory_of_its_process() -> None:
    later = msgspec.structs.replace(
        EARLIER,
        caches={
            "gateway 0": {"encodings": CacheSize(9_001, 9_000), "renderings": CacheSize(9, 700)}
        },
    )
    assert later.growth_since(EARLIER) == ["gateway 0: encodings hold 9,001 of 9,000 bytes"]


def test_cache_that_is_emptied_must_give_its_memory_back() -> None:
    later = msgspec.structs.replace(
        EARLIER,
        resident_bytes={"gateway 0": 1_000_000 + GROWTH_BYTES_MAX},
        caches={"gateway 0": {"encodings": CacheSize(499, 9_000)}},
    )
    assert later.growth_since(EARLIER) == [
        f"gateway 0: {GROWTH_BYTES_MAX + 1:,} bytes outside of caches"
    ]

"""Wrong keys by address of the client: a token bucket for each address, against trying many keys.

Keys that an address has shown and that were right are remembered for a while: users behind one
proxy go on while another of them is throttled.
"""

import time
from collections.abc import Callable
from typing import TypeVar

WRONG_KEYS_BURST = 20
"""Wrong keys of an address that are answered at once."""
WRONG_KEYS_PER_S = 1.0
ADDRESSES_MAX = 10_000
RIGHT_KEYS_MAX = 10_000
"""Bound on the keys that are remembered, over all addresses."""
RIGHT_KEY_S = 3600.0
_K = TypeVar("_K")
_V = TypeVar("_V")


class WrongKeys:
    """Counts wrong keys. The least recently used addresses and keys are dropped at the bounds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: dict[str, tuple[float, float, bool]] = {}
        """By address: wrong keys that are not paid off, the time at which they were counted, and
        whether the address has been throttled since there were none."""
        self._right_keys: dict[tuple[str, bytes], float] = {}
        """Time of the last use, by address and digest of the key."""

    @property
    def held(self) -> tuple[int, int]:
        """Number of addresses and of keys that are held."""
        return len(self._levels), len(self._right_keys)

    def wait_s(self, address: str) -> float:
        """Return the seconds until another wrong key of this address is answered; 0 now."""
        level, _ = self._level(address)
        return max(0.0, level + 1 - WRONG_KEYS_BURST) / WRONG_KEYS_PER_S

    def count(self, address: str) -> bool:
        """Count a wrong key. Returns True if the address is throttled from now on, and was not
        before."""
        level, was_throttled = self._level(address)
        is_throttled = level + 2 > WRONG_KEYS_BURST
        entry = (level + 1, self._clock(), was_throttled or is_throttled)
        _put(self._levels, address, entry, ADDRESSES_MAX)
        return is_throttled and not was_throttled

    def remember(self, address: str, key_digest: bytes) -> None:
        """Remember a right key of an address."""
        _put(self._right_keys, (address, key_digest), self._clock(), RIGHT_KEYS_MAX)

    def was_right(self, address: str, key_digest: bytes) -> bool:
        """Whether a key of this address was right within RIGHT_KEY_S."""
        used = self._right_keys.get((address, key_digest))
        return used is not None and self._clock() - used < RIGHT_KEY_S

    def _level(self, address: str) -> tuple[float, bool]:
        level, counted, was_throttled = self._levels.get(address, (0.0, 0.0, False))
        level -= (self._clock() - counted) * WRONG_KEYS_PER_S
        return (level, was_throttled) if level > 0 else (0.0, False)


def _put(entries: dict[_K, _V], key: _K, value: _V, entries_max: int) -> None:
    """Put an entry at the end of a dict, whose first entry goes if there are too many."""
    entries.pop(key, None)
    if len(entries) >= entries_max:
        del entries[next(iter(entries))]
    entries[key] = value

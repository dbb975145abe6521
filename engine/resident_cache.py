"""Caches that are bounded in resident bytes: what an entry holds, not what was asked for.

    cache   bytes_max ▕ group A ████████ ▕ group B ██ ▕ group C █     a group over its share is
                                                                      evicted from first

An entry belongs to a group (a tenant). Any group may fill the cache while the others leave room.
Once the cache is full, the group that holds most loses entries first if it holds more than its
share; otherwise the least recently used entry of all is evicted. Among the entries next in line,
the most costly goes first.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_CANDIDATES = 8
"""Least recently used entries of which the most costly is evicted."""


class _Entry(Generic[V]):
    __slots__ = ("cost_bytes", "group", "used_at", "value")

    def __init__(self, value: V, cost_bytes: int, group: str, used_at: int) -> None:
        self.value = value
        self.cost_bytes = cost_bytes
        self.group = group
        self.used_at = used_at


class ResidentCache(Generic[K, V]):
    """A cache of at most `bytes_max` resident bytes. Any thread may call it."""

    def __init__(self, bytes_max: int, share: float = 0.25) -> None:
        """`share`: part of `bytes_max` that a group keeps while others need room. Also the largest
        entry; larger ones are not kept."""
        self.bytes_max = bytes_max
        self._share_bytes = int(bytes_max * share)
        self._lock = threading.Lock()
        self._entries: dict[K, _Entry[V]] = {}
        self._groups: dict[str, OrderedDict[K, None]] = {}
        """The keys of each group, least recently used first."""
        self._group_bytes: dict[str, int] = {}
        self._uses = itertools.count()
        self.held_bytes = 0
        self.evicted_bytes = 0
        """Bytes that were ever evicted or removed."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used. Returns None if it is not kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used_at = next(self._uses)
            self._groups[entry.group].move_to_end(key)
            return entry.value

    def add(self, key: K, value: V, cost_bytes: int, group: str = "") -> bool:
        """Keep a value, in place of the one under the same key. Returns False, and keeps nothing,
        if it costs more than the share of a group."""
        with self._lock:
            if key in self._entries:
                self.evicted_bytes -= self._entries[key].cost_bytes
                self._remove(key)
            if cost_bytes > self._share_bytes:
                return False
            self._entries[key] = _Entry(value, cost_bytes, group, next(self._uses))
            self._groups.setdefault(group, OrderedDict())[key] = None
            self._charge(group, cost_bytes)
            self._evict()
            return True

    def remove(self, key: K) -> None:
        """Remove a value; harmless if it is not kept."""
        with self._lock:
            if key in self._entries:
                self._remove(key)

    def clear(self) -> None:
        with self._lock:
            for key in list(self._entries):
                self._remove(key)

    def _charge(self, group: str, cost_bytes: int) -> None:
        self.held_bytes += cost_bytes
        self._group_bytes[group] = self._group_bytes.get(group, 0) + cost_bytes

    def _evict(self) -> None:
        while self.held_bytes > self.bytes_max:
            largest = max(self._group_bytes, key=self._group_bytes.__getitem__)
            if self._group_bytes[largest] <= self._share_bytes:
                firsts = {group: next(iter(keys)) for group, keys in self._groups.items()}
                largest = min(firsts, key=lambda group: self._entries[firsts[group]].used_at)
            keys = self._groups[largest]
            # The newest entry of a group was used last: it goes only if it is the only one.
            candidates = list(itertools.islice(keys, min(_CANDIDATES, max(1, len(keys) - 1))))
            self._remove(max(candidates, key=lambda key: self._entries[key].cost_bytes))

    def _remove(self, key: K) -> None:
        entry = self._entries.pop(key)
        keys = self._groups[entry.group]
        del keys[key]
        self._charge(entry.group, -entry.cost_bytes)
        self.evicted_bytes += entry.cost_bytes
        if not keys:
            del self._groups[entry.group], self._group_bytes[entry.group]

"""Caches that are bounded in resident bytes: what an entry holds, not what was asked for.

    cache   bytes_max ▕ group A ████████ ▕ group B ██ ▕ group C █     a group over its share is
                                                                      evicted from first

An entry belongs to a group (a tenant): one that is named, or that of the task which adds it. Any
group may fill the cache while the others leave room. Once the cache is full, the group that holds
most loses entries first if it holds more than its share; otherwise the least recently used entry
of all is evicted. Among the entries next in line, the most costly goes first.

What several entries of a group share belongs to none of them: it is charged to the group.
"""

import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

cache_group: ContextVar[str] = ContextVar("cache_group", default="")
"""The group for whose work this task or thread adds entries."""


class CacheSize(NamedTuple):
    """Resident bytes of one cache, or of several, and their bound."""

    held_bytes: int
    bytes_max: int


class _Entry(Generic[V]):
    __slots__ = ("cost_bytes", "group", "used_at", "value")

    def __init__(self, value: V, cost_bytes: int, group: str, used_at: int) -> None:
        self.value = value
        self.cost_bytes = cost_bytes
        self.group = group
        self.used_at = used_at


class ResidentCache(Generic[K, V]):
    """A cache of at most `bytes_max` resident bytes. Any thread may call it."""

    def __init__(
        self,
        bytes_max: int,
        share: float = 0.25,
        *,
        entry_bytes_max: int | None = None,
        entries_max: int | None = None,
        candidates: int = 8,
        on_removed: Callable[[K, V], None] | None = None,
    ) -> None:
        """Args:
        bytes_max: bound of the costs of all entries and of what groups share, in bytes.
        share: part of `bytes_max` that a group keeps while others need room.
        entry_bytes_max: cost of the largest entry, in bytes; larger ones are not kept. None: the
            share of a group. One beyond the share is evicted as soon as others need its room.
        entries_max: bound of the number of entries. None: only their bytes are bounded.
        candidates: number of least recently used entries of which the most costly is evicted; 1:
            the least recently used one, whatever its cost.
        on_removed: called with each entry that is evicted, removed or replaced, under the lock of
            the cache; may call `charge`.
        """
        self.bytes_max = bytes_max
        self.share_bytes = int(bytes_max * share)
        self._entry_bytes_max = self.share_bytes if entry_bytes_max is None else entry_bytes_max
        self._entries_max = entries_max
        self._candidates = candidates
        self._on_removed = on_removed
        self._lock = threading.RLock()
        self._entries: dict[K, _Entry[V]] = {}
        self._groups: dict[str, OrderedDict[K, None]] = {}
        """The keys of each group, least recently used first."""
        self._group_bytes: Counter[str] = Counter()
        self._uses = itertools.count()
        self.held_bytes = 0
        self.evicted_bytes = 0
        """Bytes that were ever evicted or removed."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def size(self) -> CacheSize:
        return CacheSize(self.held_bytes, self.bytes_max)

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used. Returns None if it is not kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.used_at = next(self._uses)
            self._groups[entry.group].move_to_end(key)
            return entry.value

    def add(self, key: K, value: V, cost_bytes: int, group: str | None = None) -> bool:
        """Keep a value, in place of the one under the same key. `group`: None means `cache_group`.
        Returns False, and keeps nothing, if it costs more than an entry may."""
        if group is None:
            group = cache_group.get()
        with self._lock:
            if key in self._entries:
                self.evicted_bytes -= self._entries[key].cost_bytes
                self._remove(key)
            if cost_bytes > self._entry_bytes_max:
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

    def charge(self, group: str, cost_bytes: int) -> None:
        """Add the bytes that entries of a group have begun to share; negative: they share less."""
        with self._lock:
            self._charge(group, cost_bytes)
            if cost_bytes > 0:
                self._evict()

    def clear(self) -> None:
        with self._lock:
            for key in list(self._entries):
                self._remove(key)

    def _charge(self, group: str, cost_bytes: int) -> None:
        self.held_bytes += cost_bytes
        self._group_bytes[group] += cost_bytes
        if not self._group_bytes[group]:
            del self._group_bytes[group]

    def _is_over(self) -> bool:
        return self.held_bytes > self.bytes_max or (
            self._entries_max is not None and len(self._entries) > self._entries_max
        )

    def _evict(self) -> None:
        while self._entries and self._is_over():
            largest = max(self._groups, key=lambda group: self._group_bytes.get(group, 0))
            if self._group_bytes.get(largest, 0) <= self.share_bytes:
                firsts = {group: next(iter(keys)) for group, keys in self._groups.items()}
                largest = min(firsts, key=lambda group: self._entries[firsts[group]].used_at)
            keys = self._groups[largest]
            # The newest entry of a group was used last: it goes only if it is the only one.
            count = min(self._candidates, max(1, len(keys) - 1))
            candidates = list(itertools.islice(keys, count))
            self._remove(max(candidates, key=lambda key: self._entries[key].cost_bytes))

    def _remove(self, key: K) -> None:
        entry = self._entries.pop(key)
        keys = self._groups[entry.group]
        del keys[key]
        if not keys:
            del self._groups[entry.group]
        self._charge(entry.group, -entry.cost_bytes)
        self.evicted_bytes += entry.cost_bytes
        if self._on_removed is not None:
            self._on_removed(key, entry.value)

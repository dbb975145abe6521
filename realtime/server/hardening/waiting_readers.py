"""Waiting readers: the connections that wait for a read turn, in the order of their turns."""

from typing import NamedTuple, Protocol

_CLASS_BITS = 3
"""A class of readers by size has unread bytes of this many bit lengths: a factor of 8."""
_CLASSES = 12
LIGHT = 0
"""The class of a tenant's light readers, whatever their size."""


class Reader(Protocol):
    """A connection with unread bytes."""

    @property
    def unread_bytes(self) -> int: ...

    @property
    def owner(self) -> object:
        """The tenant of the connection. None: not known."""
        ...

    @property
    def is_light(self) -> bool:
        """Whether the connection has used little time lately."""
        ...

    def parse_slice(self) -> bool:
        """Parse one slice of the unread bytes. Returns whether another one can be parsed."""
        ...

    def spend(self, seconds: float) -> None:
        """Charge the time of a turn."""
        ...

    def abort(self) -> None:
        """Close the connection after a fault of its parser."""
        ...


class Place(NamedTuple):
    """Place of a reader, by what was true when it began to wait."""

    owner: object
    size_class: int
    least_s: float
    """Seconds that its turn counts at least."""
    began_s: float
    """When it began to wait."""


class WaitingReaders:
    """Light readers of tenants come first, then readers with few unread bytes, then those with
    many. Among those with about as many, owners take turns, however many readers each has; an
    owner's oldest reader comes first."""

    def __init__(self) -> None:
        self._places: dict[Reader, Place] = {}
        """The oldest first."""
        self._classes: list[dict[object, dict[Reader, None]]] = [{} for _ in range(_CLASSES)]
        """The readers of each class, by owner. In a class, the owner comes first whose last turn
        was the longest time ago."""

    def __bool__(self) -> bool:
        return bool(self._places)

    def __contains__(self, reader: Reader) -> bool:
        return reader in self._places

    @property
    def has_light(self) -> bool:
        """Whether a tenant's light reader waits."""
        return bool(self._classes[LIGHT])

    @property
    def has_others(self) -> bool:
        return any(self._classes[LIGHT + 1 :])

    def add(self, reader: Reader, least_s: float, now_s: float = 0.0) -> None:
        """`least_s`: seconds that its turn counts at least."""
        owner, size_class = reader.owner, LIGHT
        if owner is None or not reader.is_light:
            bits = reader.unread_bytes.bit_length()
            size_class = min(1 + -(-bits // _CLASS_BITS), _CLASSES - 1)
        self._places[reader] = Place(owner, size_class, least_s, now_s)
        self._classes[size_class].setdefault(owner, {})[reader] = None

    def remove(self, reader: Reader) -> Place:
        """Remove a reader. Its owner becomes the last one of its class."""
        place = self._places.pop(reader)
        owners = self._classes[place.size_class]
        readers = owners.pop(place.owner)
        del readers[reader]
        if readers:
            owners[place.owner] = readers
        return place

    def is_new_first(self, least_s: float) -> bool:
        """Whether the oldest reader is light, and its turn counts at least `least_s` seconds."""
        oldest = self.oldest()
        return oldest is not None and oldest.is_light and self._places[oldest].least_s >= least_s

    def oldest(self) -> Reader | None:
        """Return the reader that has waited longest."""
        return next(iter(self._places), None)

    def next(self) -> Reader | None:
        """Return the reader whose turn is next."""
        owners = next((owners for owners in self._classes if owners), None)
        return None if owners is None else next(iter(next(iter(owners.values()))))

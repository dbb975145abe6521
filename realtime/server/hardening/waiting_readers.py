"""Waiting readers: the connections that wait for a read turn, in the order of their turns."""

from typing import NamedTuple, Protocol

_CLASS_BITS = 3
"""A class of readers by size has unread bytes of this many bit lengths: a factor of 8."""
_CLASSES = 11


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

    def begin_turn(self) -> None:
        """Note that a turn was granted in a round."""
        ...

    def spend(self, seconds: float) -> None:
        """Charge the time of a turn."""
        ...

    def abort(self) -> None:
        """Close the connection after a fault of its parser."""
        ...


class _Place(NamedTuple):
    """Place of a reader, by what was true when it began to wait."""

    owner: object
    size_class: int
    least_s: float


class WaitingReaders:
    """Readers with few unread bytes come before those with many. Among those with about as many,
    owners take turns, however many readers each has; an owner's oldest reader comes first."""

    def __init__(self) -> None:
        self._places: dict[Reader, _Place] = {}
        """The oldest first."""
        self._classes: list[dict[object, dict[Reader, None]]] = [{} for _ in range(_CLASSES)]
        """The readers of each class by size, by owner. In a class, the owner comes first whose last
        turn was the longest time ago."""

    def __bool__(self) -> bool:
        return bool(self._places)

    def __contains__(self, reader: Reader) -> bool:
        return reader in self._places

    def add(self, reader: Reader, least_s: float) -> None:
        """`least_s`: seconds that its turn counts at least."""
        bits = reader.unread_bytes.bit_length()
        place = _Place(reader.owner, min(-(-bits // _CLASS_BITS), _CLASSES - 1), least_s)
        self._places[reader] = place
        self._classes[place.size_class].setdefault(place.owner, {})[reader] = None

    def remove(self, reader: Reader) -> float:
        """Returns the seconds that its turn counts at least. Its owner becomes the last one of its
        class."""
        place = self._places.pop(reader)
        owners = self._classes[place.size_class]
        readers = owners.pop(place.owner)
        del readers[reader]
        if readers:
            owners[place.owner] = readers
        return place.least_s

    def least_s(self, reader: Reader) -> float:
        """Return the seconds that the turn of a reader counts at least."""
        return self._places[reader].least_s

    def oldest(self) -> Reader | None:
        """Return the reader that has waited longest."""
        return next(iter(self._places), None)

    def next(self) -> Reader | None:
        """Return the reader whose turn is next."""
        owners = next((owners for owners in self._classes if owners), None)
        return None if owners is None else next(iter(next(iter(owners.values()))))

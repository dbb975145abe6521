"""SlotTable: which session has which slot of a llama-server. Pure."""

from array import array

from continuo.engine.wire.turn_tree import common_prefix_length


class SlotTable:
    """The slots of one server, each with the KV of the session that used it last.

    A session keeps its slot until another one needs it: the least recently used slot without a
    request gives way. If all have requests, the session shares the least recently used one, and its
    request waits at the server.
    """

    def __init__(self, count: int) -> None:
        """`count`: number of slots, at least 1."""
        self._owners: dict[int, str] = dict.fromkeys(range(count), "")
        """Session of each slot, empty for none, in the order of their last use."""
        self._requests = dict.fromkeys(range(count), 0)
        self._ids: dict[int, array[int]] = {}
        """Ids whose KV each slot holds, as far as known."""

    @property
    def count(self) -> int:
        return len(self._owners)

    @property
    def used(self) -> int:
        """Number of slots that sessions have."""
        return sum(map(bool, self._owners.values()))

    def begin(self, session: str) -> int:
        """Return the slot for a request of a session, which has it from now on."""
        slot = self._find(session)
        if self._owners.pop(slot) != session:
            self._ids.pop(slot, None)
        self._owners[slot] = session
        self._requests[slot] += 1
        return slot

    def _find(self, session: str) -> int:
        """Return the slot of a session, else a free one, else the one that gives way."""
        candidates = list(self._owners)
        candidates.sort(key=lambda slot: (self._owners[slot] != session, bool(self._owners[slot])))
        first = candidates[0]
        if self._owners[first] in (session, ""):
            return first
        return next((slot for slot in candidates if not self._requests[slot]), first)

    def end(self, slot: int, session: str, ids: "array[int] | None") -> None:
        """End a request. `ids`: those whose KV the slot holds now; None: unknown."""
        self.release(slot)
        if ids is None or self._owners[slot] != session:
            self._ids.pop(slot, None)
        else:
            self._ids[slot] = ids

    def release(self, slot: int) -> None:
        """End a request that has not changed what the slot holds."""
        self._requests[slot] -= 1

    def keeps(self, session: str) -> bool:
        """Return whether a session has a slot, with what was computed in it before."""
        return any(
            owner == session and (slot in self._ids or self._requests[slot] > 0)
            for slot, owner in self._owners.items()
        )

    def find_idle(self, session: str) -> int | None:
        """Return the slot of a session, if it has one without a request, else None."""
        slots = (slot for slot, owner in self._owners.items() if owner == session)
        slot = next(slots, None)
        return None if slot is None or self._requests[slot] else slot

    def copy(self, source: int, slot: int) -> None:
        """Record that a slot holds the KV of another one."""
        if (ids := self._ids.get(source)) is not None:
            self._ids[slot] = ids

    def count_held(self, slot: int, ids: "array[int]") -> int:
        """Return how many of the first `ids` the slot should hold the KV of."""
        held = self._ids.get(slot)
        return 0 if held is None else common_prefix_length(held, ids)

    def clear(self) -> None:
        """Expect no KV in any slot: the server may have been started anew."""
        self._ids.clear()

    def close(self, session: str) -> None:
        """Free the slot of a session."""
        for slot, owner in self._owners.items():
            if owner == session:
                self._owners[slot] = ""
                self._ids.pop(slot, None)

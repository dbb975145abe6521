"""SharedPool: a fixed number of units (window pages, state slots), each counted by its holders.

A unit is free if nothing holds it. Leases, marks and tree nodes may hold the same unit, because a
unit that several hold is never written.
"""


class SharedPool:
    def __init__(self, total: int) -> None:
        self.total = total
        self.holders = [0] * total
        """Number of holders of each unit."""
        self._free = list(range(total - 1, -1, -1))

    @property
    def free_count(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        unit = self._free.pop()
        self.holders[unit] = 1
        return unit

    def share(self, unit: int) -> int:
        """Add a holder of `unit`. Returns the unit."""
        assert self.holders[unit], "a free unit cannot be shared"
        self.holders[unit] += 1
        return unit

    def release(self, unit: int) -> None:
        """Remove a holder of `unit`, and free the unit if that was the last one."""
        assert self.holders[unit], "a unit was released more often than held"
        self.holders[unit] -= 1
        if not self.holders[unit]:
            self._free.append(unit)

    def audit(self, held: list[int]) -> None:
        """Check free + held == total. `held`: a unit for each of its holders, in any order. Raises
        AssertionError."""
        counts = [0] * self.total
        for unit in held:
            counts[unit] += 1
        assert counts == self.holders, "the holders of a unit do not match its count"
        unheld = [unit for unit, count in enumerate(counts) if not count]
        assert sorted(self._free) == unheld, "a unit is lost, or free and held"

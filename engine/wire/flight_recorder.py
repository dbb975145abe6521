"""FlightRecorder: the rows of the steps in flight, in memory that outlives the engine process.

    incarnation │ rows of a step │ rows of the step behind it

An engine writes the marks of a step's rows before it launches the step, and takes them back when
the step has taken effect. If the process dies, the next one reads in which steps, and tells the
fronts (messages.Predecessor). The memory is a file without a name that the parent keeps open.
"""

import mmap
import os
import tempfile
from hashlib import blake2b

from continuo.engine.wire.messages import Predecessor

MARK_BYTES = 8
NAME_BYTES = 64
"""Bytes for the name of an incarnation, the byte of its length included."""
HEAD_BYTES = 8
"""Bytes before the rows of a step: one says whether the step is in flight, seven count its rows."""
STEPS = 2
"""Steps that may be in flight."""


def mark_of(session: str) -> bytes:
    """The mark of a session in the recorder: fixed in size, and it tells no other front the
    name."""
    return blake2b(session.encode(), digest_size=MARK_BYTES).digest()


def size_for(rows: int) -> int:
    """Bytes of a recorder for steps of so many rows."""
    return NAME_BYTES + STEPS * (HEAD_BYTES + rows * MARK_BYTES)


def memory_file(rows: int) -> int:
    """A descriptor of memory for a recorder, which is freed with its last descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("continuo-flight-recorder")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size_for(rows))
    return fd


class FlightRecorder:
    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        slot = (len(memory) - NAME_BYTES) // STEPS
        self._starts = [NAME_BYTES + slot * n for n in range(STEPS)]
        rows = (slot - HEAD_BYTES) // MARK_BYTES
        self._counts = [n.to_bytes(HEAD_BYTES - 1, "little") for n in range(rows + 1)]

    @classmethod
    def on(cls, fd: int) -> "FlightRecorder":
        """Takes the descriptor over."""
        try:
            return cls(mmap.mmap(fd, os.fstat(fd).st_size))
        finally:
            os.close(fd)

    def predecessor(self) -> Predecessor | None:
        """The record of the engine before this one. Returns None if there was none."""
        memory = self._memory
        if not memory[0]:
            return None
        steps = [self._rows(start) for start in self._starts]
        name = bytes(memory[1 : 1 + memory[0]]).decode(errors="replace")
        return Predecessor(name, [rows for rows in steps if rows])

    def begin_life(self, incarnation: str) -> None:
        """Begin the record of this engine; that of the engine before is lost."""
        for number in range(STEPS):
            self.end(number)
        name = incarnation.encode()[: NAME_BYTES - 1]
        self._memory[0 : 1 + len(name)] = bytes((len(name),)) + name

    def begin(self, number: int, marks: list[bytes]) -> None:
        """The step is about to be launched."""
        start = self._starts[number % STEPS]
        rows = self._counts[len(marks)] + b"".join(marks)
        self._memory[start + 1 : start + 1 + len(rows)] = rows
        self._memory[start] = 1

    def end(self, number: int) -> None:
        """The step has taken effect."""
        self._memory[self._starts[number % STEPS]] = 0

    def _rows(self, start: int) -> list[bytes]:
        if not self._memory[start]:
            return []
        first = start + HEAD_BYTES
        count = int.from_bytes(self._memory[start + 1 : first], "little")
        end = first + count * MARK_BYTES
        return [bytes(self._memory[n : n + MARK_BYTES]) for n in range(first, end, MARK_BYTES)]

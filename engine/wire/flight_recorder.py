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

SESSION_HASH_BYTES = 8
INCARNATION_BYTES = 64
"""Bytes for the name of an incarnation, the byte of its length included."""
STEP_HEADER_BYTES = 8
"""Bytes before the rows of a step: one says whether the step is in flight, seven count its rows."""
STEPS_IN_FLIGHT_MAX = 2
"""Steps that may be in flight."""


def hash_session_id(session: str) -> bytes:
    """The mark of a session in the recorder: fixed in size, and it tells no other front the
    name."""
    return blake2b(session.encode(), digest_size=SESSION_HASH_BYTES).digest()


def compute_recorder_bytes(rows: int) -> int:
    """Bytes of a recorder for steps of so many rows."""
    return INCARNATION_BYTES + STEPS_IN_FLIGHT_MAX * (STEP_HEADER_BYTES + rows * SESSION_HASH_BYTES)


def create_memory_file(rows: int) -> int:
    """A descriptor of memory for a recorder, which is freed with its last descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("continuo-flight-recorder")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, compute_recorder_bytes(rows))
    return fd


class FlightRecorder:
    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        slot = (len(memory) - INCARNATION_BYTES) // STEPS_IN_FLIGHT_MAX
        self._step_offsets = [INCARNATION_BYTES + slot * n for n in range(STEPS_IN_FLIGHT_MAX)]
        rows = (slot - STEP_HEADER_BYTES) // SESSION_HASH_BYTES
        self._row_counts = [n.to_bytes(STEP_HEADER_BYTES - 1, "little") for n in range(rows + 1)]

    @classmethod
    def from_fd(cls, fd: int) -> "FlightRecorder":
        """Takes the descriptor over."""
        try:
            return cls(mmap.mmap(fd, os.fstat(fd).st_size))
        finally:
            os.close(fd)

    def read_predecessor(self) -> Predecessor | None:
        """The record of the engine before this one. Returns None if there was none."""
        memory = self._memory
        if not memory[0]:
            return None
        steps = [self._read_rows(start) for start in self._step_offsets]
        name = bytes(memory[1 : 1 + memory[0]]).decode(errors="replace")
        return Predecessor(name, [rows for rows in steps if rows])

    def begin_incarnation(self, incarnation: str) -> None:
        """Begin the record of this engine; that of the engine before is lost."""
        for number in range(STEPS_IN_FLIGHT_MAX):
            self.end_step(number)
        name = incarnation.encode()[: INCARNATION_BYTES - 1]
        self._memory[0 : 1 + len(name)] = bytes((len(name),)) + name

    def begin_step(self, number: int, session_hashes: list[bytes]) -> None:
        """The step is about to be launched."""
        start = self._step_offsets[number % STEPS_IN_FLIGHT_MAX]
        rows = self._row_counts[len(session_hashes)] + b"".join(session_hashes)
        self._memory[start + 1 : start + 1 + len(rows)] = rows
        self._memory[start] = 1

    def end_step(self, number: int) -> None:
        """The step has taken effect."""
        self._memory[self._step_offsets[number % STEPS_IN_FLIGHT_MAX]] = 0

    def _read_rows(self, start: int) -> list[bytes]:
        if not self._memory[start]:
            return []
        first = start + STEP_HEADER_BYTES
        count = int.from_bytes(self._memory[start + 1 : first], "little")
        end = first + count * SESSION_HASH_BYTES
        return [
            bytes(self._memory[n : n + SESSION_HASH_BYTES])
            for n in range(first, end, SESSION_HASH_BYTES)
        ]

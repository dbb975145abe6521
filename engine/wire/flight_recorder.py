"""FlightRecorder: the rows of the steps in flight, in memory that outlives the engine process.

    incarnation │ rows of a step │ rows of the next step

An engine writes the session hashes of a step's rows before it launches the step, and clears them
when the step has taken effect. If the process dies, the next one reads the rows of the steps that
were in flight and reports them to its clients (messages.Predecessor). The memory is an anonymous
file that the parent process keeps open.
"""

import mmap
import os
import tempfile
from hashlib import blake2b

from continuo.engine.wire.messages import Predecessor

SESSION_HASH_BYTES = 8
INCARNATION_BYTES = 64
"""Bytes for the id of an incarnation, including the byte that holds its length."""
STEP_HEADER_BYTES = 8
"""Bytes before the rows of a step: one for the flag that the step is in flight, seven for the
number of rows."""
STEPS_IN_FLIGHT_MAX = 2


def hash_session_id(session: str) -> bytes:
    """Return the digest that represents a session in the recorder. Its size is fixed, and it does
    not reveal the session's id, which other clients must not learn."""
    return blake2b(session.encode(), digest_size=SESSION_HASH_BYTES).digest()


def compute_recorder_bytes(rows: int) -> int:
    """Return the bytes of memory that a recorder needs for steps of up to `rows` rows."""
    return INCARNATION_BYTES + STEPS_IN_FLIGHT_MAX * (STEP_HEADER_BYTES + rows * SESSION_HASH_BYTES)


def create_memory_file(rows: int) -> int:
    """Create anonymous memory for a recorder and return its file descriptor. The memory is freed
    when its last descriptor is closed."""
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
        """Map the memory of descriptor `fd`, and close `fd`."""
        try:
            return cls(mmap.mmap(fd, os.fstat(fd).st_size))
        finally:
            os.close(fd)

    def read_predecessor(self) -> Predecessor | None:
        """Read the record of the previous engine process. Returns None if there is none."""
        memory = self._memory
        if not memory[0]:
            return None
        steps = [self._read_rows(start) for start in self._step_offsets]
        name = bytes(memory[1 : 1 + memory[0]]).decode(errors="replace")
        return Predecessor(name, [rows for rows in steps if rows])

    def begin_incarnation(self, incarnation: str) -> None:
        """Start the record of this engine process, overwriting that of the previous one."""
        for number in range(STEPS_IN_FLIGHT_MAX):
            self.end_step(number)
        name = incarnation.encode()[: INCARNATION_BYTES - 1]
        self._memory[0 : 1 + len(name)] = bytes((len(name),)) + name

    def begin_step(self, number: int, session_hashes: list[bytes]) -> None:
        """Record step `number` before it is launched. `session_hashes` has the hash_session_id of
        each row's session."""
        start = self._step_offsets[number % STEPS_IN_FLIGHT_MAX]
        rows = self._row_counts[len(session_hashes)] + b"".join(session_hashes)
        self._memory[start + 1 : start + 1 + len(rows)] = rows
        self._memory[start] = 1

    def end_step(self, number: int) -> None:
        """Clear the rows of step `number`, which has taken effect or was cancelled."""
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

"""The memory allocator of the C library, which all but small Python objects come from."""

import contextlib
import ctypes


class _HeapStatistics(ctypes.Structure):
    """The result of glibc's mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def count_allocated_bytes() -> int | None:
    """Return how much memory the allocator has given to all threads. None: without glibc 2.33."""
    read_statistics = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if read_statistics is None:
        return None
    read_statistics.restype = _HeapStatistics
    statistics = read_statistics()
    return statistics.uordblks + statistics.hblkhd


def give_memory_back() -> None:
    """Return freed memory from the allocator to the system. Does nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

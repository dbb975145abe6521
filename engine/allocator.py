"""The memory allocator of the C library, which all but small Python objects come from."""

import contextlib
import ctypes


def give_memory_back() -> None:
    """Return freed memory from the allocator to the system. Does nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

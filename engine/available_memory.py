"""Main memory that a process can still take, that of the machine and of the cgroups around it; and
what of it the KV pool takes."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
CPU_MEMORY_FRACTION, CPU_POOL_BYTES_MAX = 0.25, 1 << 30
"""Default size of the KV pool on a CPU: this fraction of the available memory, but at most this
many bytes."""


def available_memory_bytes(root: Path | None = None) -> int | None:
    """Return the main memory, in bytes, that this process can take; None if the system does not
    say. `root`: the folder that holds `proc` and `sys`."""
    root = root or ROOT
    machine = _read_fields(root / "proc/meminfo").get("MemAvailable:")
    if machine is None:
        return None
    return max(0, min([machine * 1024, *_free_bytes_of_cgroups(root)]))


def cpu_pool_bytes(available_bytes: int | None = None) -> int:
    """Return the default size of the KV pool on a CPU. `available_bytes`: the available memory;
    None: that of this process."""
    available = available_memory_bytes() if available_bytes is None else available_bytes
    if available is None:
        return CPU_POOL_BYTES_MAX
    return min(CPU_POOL_BYTES_MAX, int(available * CPU_MEMORY_FRACTION))


def _free_bytes_of_cgroups(root: Path) -> Iterator[int]:
    """Yield what each cgroup (version 2) of this process with a limit has left. The page cache of
    files counts as free, because the kernel reclaims it."""
    for folder in _find_cgroups(root):
        try:
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
        except (OSError, ValueError):  # no such file, or no limit: "max"
            continue
        yield limit - used + _read_fields(folder / "memory.stat").get("inactive_file", 0)


def _find_cgroups(root: Path) -> list[Path]:
    """Return the folders of the cgroup of this process and of those that contain it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    paths = (line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    path = PurePosixPath(next(paths, ""))
    return [root / "sys/fs/cgroup" / one for one in (path, *path.parents)]


def _read_fields(path: Path) -> dict[str, int]:
    """Read a file of lines `NAME NUMBER`; no fields if there is none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}

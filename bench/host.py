"""The machine that measures: its description, its read bandwidth, and who used its processors
during a measurement."""

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import resource
import shlex
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from continuo.engine.device.native.compile import CACHE_FOLDER, FLAGS, compile_to

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FOREIGN_CORES_MAX = 0.1
"""CPU time of processes that do not belong to the benchmark, in cores, above which a measurement
counts as noisy."""
BANDWIDTH_SOURCE = Path(__file__).parent / "read_bandwidth.c"
BANDWIDTH_BUFFER_BYTES = 1 << 29
BANDWIDTH_PASSES = 7


def describe_machine() -> str:
    """Describe the machine and the versions of Python and torch in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    gpu = "".join(f", {name}" for name in _list_gpus())
    return (
        f"{model}, {os.cpu_count()} cores{gpu}; "
        f"Python {platform.python_version()}, torch {importlib.metadata.version('torch')}"
    )


def _list_gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs, which the driver lists without loading torch."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


# ---------------------------------------------------------------- processor time


class CpuReading(NamedTuple):
    """Processor use during one measurement, in cores (1.0: one core all the time)."""

    label: str
    wall_s: float
    own_cores: float
    """Use by the benchmark and all processes that it has started: servers, engines, peers."""
    foreign_cores: float
    """Use by everything else on the machine, including time that a hypervisor took away."""

    @property
    def is_noisy(self) -> bool:
        return self.foreign_cores > FOREIGN_CORES_MAX


@dataclass
class CpuMeter:
    """Measures the processor time of this benchmark and of others during each measurement."""

    readings: list[CpuReading] = field(default_factory=list[CpuReading])

    @contextlib.contextmanager
    def reading(self, label: str) -> Iterator[None]:
        """Take a reading of the block under `label`."""
        start_s, busy_s, own_s = time.monotonic(), _read_busy_s(), _read_own_s()
        try:
            yield
        finally:
            wall_s = time.monotonic() - start_s
            own = _read_own_s() - own_s
            foreign = max(_read_busy_s() - busy_s - own, 0.0)
            self.readings.append(CpuReading(label, wall_s, own / wall_s, foreign / wall_s))

    def own_cores(self, label: str) -> float:
        """Return the median processor use of this benchmark over the readings under `label`."""
        return statistics.median(r.own_cores for r in self.readings if r.label == label)

    def foreign_cores(self, label: str) -> float:
        """Return the largest processor use of others over the readings under `label`."""
        return max(r.foreign_cores for r in self.readings if r.label == label)

    def describe(self) -> str:
        """Describe the foreign processor time of all readings in one line."""
        worst = max((r.foreign_cores for r in self.readings), default=0.0)
        noisy = sum(r.is_noisy for r in self.readings)
        text = f"foreign CPU at most {worst:.2f} cores"
        if noisy:
            text += f", NOISY: above {FOREIGN_CORES_MAX} in {noisy} of {len(self.readings)} runs"
        return text


def _read_busy_s() -> float:
    """Return the seconds that all processors have worked, or were stolen by a hypervisor."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / CLOCK_TICKS_PER_S


def _read_own_s() -> float:
    """Return the processor time of this process, its descendants, and those that have ended.

    This process is read in microseconds: a short measurement may end before the next clock tick,
    in which the kernel counts the time of the others.
    """
    times: dict[int, tuple[int, int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            times[int(file.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    own = {os.getpid()}
    while more := {pid for pid, (parent, _) in times.items() if parent in own} - own:
        own |= more
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    descendants = own - {os.getpid()}
    running_s = sum(times[pid][1] for pid in descendants) / CLOCK_TICKS_PER_S
    return time.process_time() + ended.ru_utime + ended.ru_stime + running_s


# ---------------------------------------------------------------- memory


def measure_read_bandwidth(threads: int) -> float:
    """Return the bytes per second at which `threads` threads read memory, best of several passes
    over a buffer much larger than the caches.

    Raises RuntimeError if the C compiler fails.
    """
    read = _load_reader()
    padded = np.ones(BANDWIDTH_BUFFER_BYTES + 64, dtype=np.uint8)
    address = -(-padded.ctypes.data // 64) * 64
    seconds: list[float] = []
    for _ in range(BANDWIDTH_PASSES):
        start_s = time.perf_counter()
        read(address, BANDWIDTH_BUFFER_BYTES, threads)
        seconds.append(time.perf_counter() - start_s)
    return BANDWIDTH_BUFFER_BYTES / min(seconds)


def _load_reader() -> "ctypes._NamedFuncPointer":
    command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS.split(), str(BANDWIDTH_SOURCE)]
    digest = sha256(" ".join(command).encode() + BANDWIDTH_SOURCE.read_bytes()).hexdigest()[:24]
    path = CACHE_FOLDER / f"read-bandwidth-{digest}.so"
    if not path.exists():
        CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
        compile_to(command, path)
    read = ctypes.CDLL(str(path)).read_buffer
    read.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    read.restype = ctypes.c_uint64
    return read

"""The C code that draws ids, compiled without a decoder, so that it can be given any logits."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from array import array
from collections.abc import Sequence
from pathlib import Path

import torch

from continuo.engine.batch import RowResult, SampleParams
from continuo.engine.device.native.compile import COMMON_FLAGS, SOURCE_FOLDER
from continuo.engine.device.native.native_sampling import PackedSampling

SOURCE = """
#include "draw.h"
int64_t draw_row(const Sampling *sampling, float *logits, int64_t size) {
    return draw(sampling, logits, size);
}
"""
VECTORS_OF = {
    "x86_64": {"x86-64": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx512f"},
}
"""By machine: classes of processors with vectors of different sizes, and a flag that the system
reports for processors of each class."""
LANES_MAX = 16


def processor_classes() -> list[str]:
    """List the values of `-march` that run on this machine, the best of which is `native`."""
    flags = Path("/proc/cpuinfo").read_text().split()
    classes = VECTORS_OF.get(platform.machine(), {})
    return ["native", *(name for name, flag in classes.items() if flag in flags)]


class NativeDraws:
    def __init__(self, folder: Path, processor_class: str) -> None:
        source, library = folder / "draws.c", folder / f"draws-{processor_class}.so"
        source.write_text(SOURCE)
        flags = [f"-march={processor_class}", *COMMON_FLAGS.split(), "-DBF16=0", "-Wall", "-Werror"]
        command = ["cc", *flags, f"-I{SOURCE_FOLDER}", str(source), "-o", str(library), "-lm"]
        subprocess.run(command, check=True)
        self._draw_row = ctypes.CDLL(str(library)).draw_row
        self._draw_row.restype = ctypes.c_int64

    def draw(self, logits: torch.Tensor, samples: Sequence[SampleParams]) -> list[RowResult]:
        """Draw one id per row from logits [S, vocab], padded with ids that are never drawn."""
        vocab = logits.shape[1]
        size = -(-vocab // LANES_MAX) * LANES_MAX
        padded = torch.full((len(logits), size), -torch.inf)
        padded[:, :vocab] = logits
        packed = PackedSampling.pack(samples, size)
        ids = array("q")
        for row, address in zip(padded, packed.addresses, strict=True):
            ids.append(
                self._draw_row(
                    ctypes.c_void_p(address),
                    ctypes.c_void_p(row.data_ptr()),
                    ctypes.c_int64(size),
                )
            )
        return packed.to_row_results(ids)

# pyright: basic
"""python -m continuo.engine.device.native.prebuild FOLDER: compile the C sources for the processors
of other machines, as the build of a wheel does.

A library is compiled for each class of processors, and for the head sizes, dtypes and numbers of
page groups of common models, with pages of 16 tokens. This module imports no other of the package,
which the environment of a build does not have installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent
SOURCE = "decoder.c"
COMMON_FLAGS = "-O3 -ffp-contract=fast -pthread -shared -fPIC -std=gnu11"
COMPILE_S_MAX = 300.0
"""Bound of a compiler that hangs. A busy machine may take a minute, not three seconds."""
_X86_64_V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_ICE_LAKE = {
    *("avx512_vnni", "avx512_vbmi", "avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq"),
    *("avx512ifma", "gfni", "vaes", "vpclmulqdq", "sha_ni"),
}
PROCESSOR_CLASSES: Mapping[str, Mapping[str, set[str]]] = {
    "x86_64": {
        "icelake-server": _X86_64_V4 | _ICE_LAKE,
        "x86-64-v4": _X86_64_V4,
        "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    },
    "aarch64": {"armv8-a": set()},
}
"""By machine, classes of processors, the best first: name of each for `-march`, and the flags that
the system reports for a processor of that class."""
CROSS_COMPILERS = ("x86_64-linux-gnu-gcc", "aarch64-linux-gnu-gcc")
"""Compilers for other machines, which are used if they are installed."""
PAGE_SIZE = 16
HEAD_SIZES = (32, 64, 80, 96, 128, 256)
WINDOW_HEAD_SIZES = (64, 128, 256)
"""Head sizes of models that also have layers with a window, which are a second group of pages; in
bf16 alone."""


def list_variants(head_sizes: Sequence[int] = HEAD_SIZES) -> list[dict[str, int]]:
    """Return the macros of each library for models with these head sizes."""
    return [
        {"DIM": size, "PAGE_SIZE": PAGE_SIZE, "BF16": bf16, "GROUPS": groups}
        for size in head_sizes
        for bf16, groups in ((0, 1), (1, 1), (1, 2))
        if groups == 1 or size in WINDOW_HEAD_SIZES
    ]


def name_prebuilt(source: str, defines: Iterable[str], processor_class: str) -> str:
    """Name the prebuilt library of a source file for a class of processors."""
    values = "-".join(define.removeprefix("-D").replace("=", "") for define in defines)
    return f"{Path(source).stem}-{values}-{processor_class}.so"


def prebuild(folder: Path, head_sizes: Sequence[int] = HEAD_SIZES) -> list[Path]:
    """Compile libraries into `folder`, with each compiler that is installed: the one that CC names
    (default: cc), then CROSS_COMPILERS. Returns the paths of the libraries, none if there is no
    compiler. Raises SubprocessError."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = {
        folder / name_prebuilt(SOURCE, defines, processor_class): [
            *(*compiler, f"-march={processor_class}", *COMMON_FLAGS.split()),
            *(*defines, str(SOURCE_FOLDER / SOURCE)),
        ]
        for machine, compiler in _find_compilers().items()
        for processor_class in PROCESSOR_CLASSES.get(machine, ())
        for variant in list_variants(head_sizes)
        for defines in [[f"-D{name}={value}" for name, value in variant.items()]]
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_to, commands.values(), commands))
    return list(commands)


def _find_compilers() -> dict[str, list[str]]:
    """Return the command of a compiler for each machine for which one is installed."""
    compilers: dict[str, list[str]] = {}
    for name in (os.environ.get("CC") or "cc", *CROSS_COMPILERS):
        command = shlex.split(name)
        if shutil.which(command[0]) is not None:
            target = subprocess.run(
                [*command, "-dumpmachine"], check=True, capture_output=True, text=True
            )
            compilers.setdefault(target.stdout.partition("-")[0], command)
    return compilers


def compile_to(command: Sequence[str], path: Path) -> None:
    """Compile to `path`, atomically: another engine may compile the same file at the same time."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = Path(folder) / path.name
        subprocess.run(
            [*command, "-o", str(target), "-lm"],
            check=True,
            capture_output=True,
            text=True,
            timeout=COMPILE_S_MAX,
        )
        target.replace(path)


if __name__ == "__main__":
    libraries = prebuild(Path(sys.argv[1]))
    print(f"{len(libraries)} libraries in {sys.argv[1]}")

# pyright: basic
"""Load the C code of this folder. A wheel has libraries for classes of processors, which `prebuild`
has compiled. Where none fits, as in a checkout, the sources are compiled for the processor of this
machine, with its C compiler, and the library is cached."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from continuo.engine.device.native.prebuild import (
    COMMON_FLAGS,
    PROCESSOR_CLASSES,
    SOURCE_FOLDER,
    compile_to,
    name_prebuilt,
)

log = logging.getLogger(__name__)

CACHE_FOLDER = (
    Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "continuo" / "native"
)
PREBUILT_FOLDER = SOURCE_FOLDER / "prebuilt"
FLAGS = f"-march=native {COMMON_FLAGS}"


@cache
def load_library(source: str, *defines: str) -> ctypes.CDLL | None:
    """Load a source file of this folder, compiled with `defines` as compiler options.

    Returns None, with a warning in the log, if the file cannot be compiled or loaded.
    """
    if (library := _load_prebuilt(source, defines)) is not None:
        return library
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        log.warning(
            "no C compiler (%s) is installed, and no prebuilt library fits: models run slower on "
            "this CPU",
            compiler[0],
        )
        return None
    command = [*compiler, *FLAGS.split(), *defines, str(SOURCE_FOLDER / source)]
    path = CACHE_FOLDER / f"{Path(source).stem}-{_digest([*compiler, FLAGS, *defines])}.so"
    try:
        if not path.exists():
            CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
            compile_to(command, path)
        return ctypes.CDLL(str(path))
    except subprocess.SubprocessError as error:
        reason = getattr(error, "stderr", None) or error
        log.warning("models run slower on this CPU: %s", str(reason).strip()[:500])
        return None
    except OSError as error:
        hint = f"{CACHE_FOLDER} must be writable and not noexec; XDG_CACHE_HOME moves it"
        log.warning("models run slower on this CPU: %s (%s)", error, hint)
        return None


def _load_prebuilt(source: str, defines: Sequence[str]) -> ctypes.CDLL | None:
    """Load the library for the best class to which this processor belongs. Returns None if there is
    none that can be loaded."""
    flags = set(_describe_processor().split())
    for processor_class, needed in PROCESSOR_CLASSES.get(platform.machine(), {}).items():
        path = PREBUILT_FOLDER / name_prebuilt(source, defines, processor_class)
        if needed <= flags and path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:  # as with a C library older than that of the build
                log.info("%s", error)
    return None


def _digest(inputs: Sequence[str]) -> str:
    """Hash the inputs of a compilation: `inputs`, the machine, and all C sources."""
    machine = [platform.machine(), *platform.libc_ver(), _describe_processor()]
    digest = sha256("\0".join([*inputs, *machine]).encode())
    for path in sorted(SOURCE_FOLDER.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _describe_processor() -> str:
    """Describe the processor features on which `-march=native` depends, as the system reports
    them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    keys = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(keys)}))

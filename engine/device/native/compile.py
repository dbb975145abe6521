# pyright: basic
"""Compile the C sources for the processor of this machine, with its C compiler, and cache the
libraries."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

log = logging.getLogger(__name__)

SOURCE_FOLDER = Path(__file__).parent
CACHE_FOLDER = (
    Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "continuo" / "native"
)
FLAGS = "-O3 -march=native -ffp-contract=fast -pthread -shared -fPIC -std=gnu11"
COMPILE_S_MAX = 60.0


@cache
def load_library(source: str, *defines: str) -> ctypes.CDLL | None:
    """Compile and load a source file of this folder, with `defines` as compiler options.

    Returns None, with a warning in the log, if the file cannot be compiled or loaded.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        log.warning("no C compiler (%s) is installed: models run slower on this CPU", compiler[0])
        return None
    command = [*compiler, *FLAGS.split(), *defines, str(SOURCE_FOLDER / source)]
    path = CACHE_FOLDER / f"{Path(source).stem}-{_digest([*compiler, FLAGS, *defines])}.so"
    try:
        if not path.exists():
            CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
            _compile(command, path)
        return ctypes.CDLL(str(path))
    except subprocess.SubprocessError as error:
        reason = getattr(error, "stderr", None) or error
        log.warning("models run slower on this CPU: %s", str(reason).strip()[:500])
        return None
    except OSError as error:
        hint = f"{CACHE_FOLDER} must be writable and not noexec; XDG_CACHE_HOME moves it"
        log.warning("models run slower on this CPU: %s (%s)", error, hint)
        return None


def _compile(command: Sequence[str], path: Path) -> None:
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

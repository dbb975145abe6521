# pyright: basic
"""Compiles our C with the machine's C compiler, for its processor, and keeps it in the cache."""

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
    """The compiled `source` of this folder; None, and a line in the log, if it cannot be had."""
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
        said = getattr(error, "stderr", None) or error
        log.warning("models run slower on this CPU: %s", str(said).strip()[:500])
        return None
    except OSError as error:
        place = f"{CACHE_FOLDER} must be writable and let code run; XDG_CACHE_HOME moves it"
        log.warning("models run slower on this CPU: %s (%s)", error, place)
        return None


def _compile(command: Sequence[str], path: Path) -> None:
    """Another engine may compile it as well at this moment; theirs is the same."""
    with tempfile.TemporaryDirectory(dir=path.parent) as made:
        target = Path(made) / path.name
        subprocess.run(
            [*command, "-o", str(target), "-lm"],
            check=True,
            capture_output=True,
            text=True,
            timeout=COMPILE_S_MAX,
        )
        target.replace(path)


def _digest(inputs: Sequence[str]) -> str:
    """Of all that the compiled file depends on."""
    here = [platform.machine(), *platform.libc_ver(), _describe_processor()]
    digest = sha256("\0".join([*inputs, *here]).encode())
    for path in sorted(SOURCE_FOLDER.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _describe_processor() -> str:
    """What `-march=native` depends on, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    told = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(told)}))

"""Command lines that are printed: of this program, its Python and its Makefile, as a user can paste
them into a shell."""

import contextlib
import shlex
import shutil
import sys
from importlib.metadata import requires
from pathlib import Path

from continuo.realtime.server.version import DISTRIBUTION

_MODULE = "continuo.realtime.server.cli"
_ROOT = Path(__file__).resolve().parents[2]
"""The checkout, if this is one."""


def find_own_command() -> str:
    """Return how this program is called in the current shell and folder: by its name, or by its
    path if it is not on the search path."""
    program = Path(sys.argv[0])
    if program.suffix == ".py":  # started with `python -m`
        return f"{_find_path(Path(sys.executable))} -m {_MODULE}"
    return _find_path(program)


def find_install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra of this distribution beside it."""
    needed = [
        name.strip()
        for name, _, marker in (one.partition(";") for one in requires(DISTRIBUTION) or ())
        if marker.split() == ["extra", "==", f"'{extra}'"]
    ]
    assert needed, f"no extra is named {extra}"
    python = _find_path(Path(sys.executable))
    return f"{python} -m pip install {' '.join(map(shlex.quote, needed))}"


def find_make_command(target: str, root: Path = _ROOT) -> str | None:
    """Return how `target` of the Makefile in `root`, the checkout that this program runs from, is
    called in the current folder. None if this is no checkout."""
    if not (root / "Makefile").is_file():
        return None
    folder = "" if root == Path.cwd() else f"-C {shlex.quote(str(root))} "
    return f"make {folder}{target}"


def _find_path(program: Path) -> str:
    found = shutil.which(program.name)
    if found is not None and Path(found).absolute() == program.absolute():
        return program.name
    with contextlib.suppress(ValueError):
        return shlex.quote(str(program.absolute().relative_to(Path.cwd())))
    return shlex.quote(str(program))

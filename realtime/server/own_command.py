"""The command line of this program, as a user can paste it into a shell."""

import contextlib
import shlex
import shutil
import sys
from pathlib import Path

_MODULE = "continuo.realtime.server.cli"


def find_own_command() -> str:
    """Return how this program is called in the current shell and folder: by its name, or by its
    path if it is not on the search path."""
    program = Path(sys.argv[0])
    if program.suffix == ".py":  # started with `python -m`
        return f"{_find_path(Path(sys.executable))} -m {_MODULE}"
    return _find_path(program)


def _find_path(program: Path) -> str:
    found = shutil.which(program.name)
    if found is not None and Path(found).absolute() == program.absolute():
        return program.name
    with contextlib.suppress(ValueError):
        return shlex.quote(str(program.absolute().relative_to(Path.cwd())))
    return shlex.quote(str(program))

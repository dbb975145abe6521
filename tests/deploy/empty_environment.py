"""A virtual environment with a wheel, what the wheel declares to need, and nothing else.

The distributions that it needs are linked from those that are installed beside the tests, so that
neither a network nor their space on the disk is needed again.
"""

import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_environment(folder: Path, wheel: Path) -> Path:
    """Create an environment in `folder` and install `wheel` there. Returns its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    (installed,) = packages.glob("*.dist-info")
    for needed in find_dependencies(Distribution.at(installed)):
        link_distribution(needed, packages)
    subprocess.run([*pip, "check"], check=True, stdout=subprocess.DEVNULL)
    return packages


def find_dependencies(of: Distribution) -> list[Distribution]:
    """Return the installed distributions that one needs, directly or not, on this machine."""
    found: dict[str, Distribution] = {}
    seen = set[tuple[str, str]]()
    queue = [(of, "")]
    while queue:
        dependent, extra = queue.pop()
        for requirement in map(Requirement, dependent.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            needed = found.setdefault(name, distribution(name))
            for wanted in {"", *requirement.extras}:
                if (name, wanted) not in seen:
                    seen.add((name, wanted))
                    queue.append((needed, wanted))
    return list(found.values())


def link_distribution(needed: Distribution, packages: Path) -> None:
    """Link the modules, folders and metadata of a distribution into `packages`."""
    for name in {file.parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
        if not (packages / name).exists():
            (packages / name).symlink_to(Path(str(needed.locate_file(name))))

"""Tests of the image: its contents, and that code compiled in it can run as compose.yaml starts it.

The tests read the Dockerfile, because no container runs here. Loading compiled code from a volume
mounted with `noexec`, and the warning about it, are tested for real.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.deploy.stack import ROOT


class Instruction(NamedTuple):
    keyword: str
    arguments: str


def stages() -> list[list[Instruction]]:
    """The stages of the Dockerfile; the last one is the image."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    parsed: list[list[Instruction]] = []
    for keyword, arguments in (line.split(maxsplit=1) for line in lines):
        if keyword == "FROM":
            parsed.append([])
        if parsed:
            parsed[-1].append(Instruction(keyword, arguments))
    return parsed


def arguments_of(keyword: str) -> list[str]:
    """The arguments of every instruction `keyword` of the final stage."""
    return [arguments for other, arguments in stages()[-1] if other == keyword]


def home_folder() -> str:
    [home] = re.findall(r"\bHOME=(\S+)", " ".join(arguments_of("ENV")))
    return home


def test_image_has_a_c_compiler() -> None:
    """Without a compiler, models run on torch's operations, several times slower."""
    [command] = [run for run in arguments_of("RUN") if "apt-get install" in run]
    packages = command.split()
    assert {"gcc", "libc6-dev"} <= set(packages)  # gcc includes cc and libgomp


def test_home_of_the_user_is_a_volume_owned_by_the_user() -> None:
    assert arguments_of("VOLUME") == [home_folder()]
    [command] = [run for run in arguments_of("RUN") if "useradd" in run]
    assert f"--uid {arguments_of('USER')[0]} " in command
    assert re.search(rf"install -d -o continuo\b.* {home_folder()}$", command)


def test_compiled_code_is_not_cached_on_a_tmpfs() -> None:
    """Docker mounts a tmpfs with `noexec`, and the root file system is read-only."""
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())[
        "services"
    ]
    for name, service in services.items():
        if "build" not in service:
            continue
        environment = service["environment"]
        assert not {"HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"} & environment.keys(), name
        for mount in service["tmpfs"]:
            assert not Path(home_folder()).is_relative_to(mount.split(":")[0]), name
    for name in ("engine-1", "engine-2"):
        assert any(volume.split(":")[1] == home_folder() for volume in services[name]["volumes"]), (
            name
        )


# ---- the build context ---------------------------------------------------------------------------


def in_context(path: str) -> bool:
    """Whether .dockerignore keeps `path`: the last pattern that matches it or a folder decides."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text().split():
        pattern = re.escape(line.removeprefix("!"))
        pattern = pattern.replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if re.match(rf"{pattern}(?:/|$)", path):
            kept = line.startswith("!")
    return kept


def tracked(*paths: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, check=True)
    return listed.stdout.decode().split()


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="not a git checkout: tracked files are unknown"
)
def test_copied_files_are_tracked_and_in_the_build_context() -> None:
    """Includes C sources, the bundled model and the page's sources."""
    copied = [
        source
        for stage in stages()
        for keyword, arguments in stage
        if keyword == "COPY" and not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    ]
    assert {"engine", "realtime", "bench", "web", "pyproject.toml"} <= set(copied)
    for source in copied:
        files = tracked(source)
        assert files, source
        assert [file for file in files if not in_context(file)] == []


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "secrets/api_keys",
        "tests/conftest.py",
        "engine/__pycache__/loop.cpython-311.pyc",
        "web/node_modules/vite/package.json",
        "realtime/server/assets/index.html",
    ],
)
def test_local_files_are_not_in_the_build_context(path: str) -> None:
    assert not in_context(path)


# ---- compiled code -------------------------------------------------------------------------------

UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
COMPILE_SCRIPT = """
import logging
logging.basicConfig()
from continuo.engine.device.native import compile
print(compile.load_library("decoder.c", "-DDIM=16", "-DPAGE_SIZE=16", "-DBF16=0"))
"""


def can_mount() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
@pytest.mark.skipif(not can_mount(), reason="this user cannot create a mount namespace (unshare)")
@pytest.mark.parametrize(
    ("options", "runs"), [("rw,noexec,nosuid,nodev", False), ("rw,nosuid,nodev", True)]
)
def test_compiled_code_needs_a_home_mounted_without_noexec(
    tmp_path: Path, options: str, runs: bool
) -> None:
    """The first options are Docker's for a tmpfs, the second those of a volume."""
    mounting = f'mount -t tmpfs -o {options} none "$HOME" && exec "$0" -c "$1"'
    environment = {name: text for name, text in os.environ.items() if name != "XDG_CACHE_HOME"}
    result = subprocess.run(
        [*UNSHARE, "sh", "-c", mounting, sys.executable, COMPILE_SCRIPT],
        cwd=ROOT,
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("<CDLL " if runs else "None"), result
    assert ("not noexec" in result.stderr) is not runs
    assert list(tmp_path.iterdir()) == []  # the file system was mounted in another namespace

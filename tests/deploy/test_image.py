"""The image: what goes into it, and that it can compile, and run what it compiled, as compose.yaml
starts it. Read off the Dockerfile, for no container runs here; that code does not run where it may
not, and what is said then, is tried for real."""

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
    word: str
    rest: str


def stages() -> list[list[Instruction]]:
    """Of the Dockerfile; the last one is the image."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    found: list[list[Instruction]] = []
    for word, rest in (line.split(maxsplit=1) for line in lines):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(word, rest))
    return found


def said(word: str) -> list[str]:
    """What the final stage says with it."""
    return [rest for found, rest in stages()[-1] if found == word]


def home() -> str:
    [found] = re.findall(r"\bHOME=(\S+)", " ".join(said("ENV")))
    return found


def test_the_final_stage_can_compile() -> None:
    """Without a compiler models run on torch's operations, several times slower."""
    [installed] = [run for run in said("RUN") if "apt-get install" in run]
    words = installed.split()
    assert {"gcc", "libc6-dev"} <= set(words)  # with gcc come cc and libgomp


def test_the_home_is_a_volume_and_the_users_own() -> None:
    assert said("VOLUME") == [home()]
    [making] = [run for run in said("RUN") if "useradd" in run]
    assert f"--uid {said('USER')[0]} " in making
    assert re.search(rf"install -d -o continuo\b.* {home()}$", making)


def test_what_is_compiled_does_not_lie_under_a_tmpfs() -> None:
    """Docker mounts one noexec; the root is read-only."""
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())[
        "services"
    ]
    for name, service in services.items():
        if "build" not in service:
            continue
        environment = service["environment"]
        assert not {"HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR"} & environment.keys(), name
        for mounted in service["tmpfs"]:
            assert not Path(home()).is_relative_to(mounted.split(":")[0]), name
    for name in ("engine-1", "engine-2"):
        assert any(kept.split(":")[1] == home() for kept in services[name]["volumes"]), name


# ---- what goes into it ---------------------------------------------------------------------------


def in_context(path: str) -> bool:
    """What .dockerignore leaves: the last pattern that matches it or a folder above it decides."""
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


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout: what is ours?")
def test_what_is_copied_is_there() -> None:
    """C sources, the bundled model and the page's sources among it."""
    copied = [
        source
        for stage in stages()
        for word, rest in stage
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
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
def test_what_is_of_this_machine_stays_here(path: str) -> None:
    assert not in_context(path)


# ---- where code may run --------------------------------------------------------------------------

APART = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
COMPILE = """
import logging
logging.basicConfig()
from continuo.engine.device.native import compile
print(compile.load_library("decoder.c", "-DDIM=16", "-DPAGE_SIZE=16", "-DBF16=0"))
"""


def can_mount() -> bool:
    try:
        return subprocess.run([*APART, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
@pytest.mark.skipif(not can_mount(), reason="a mount namespace is not to be had here (unshare)")
@pytest.mark.parametrize(
    ("options", "runs"), [("rw,noexec,nosuid,nodev", False), ("rw,nosuid,nodev", True)]
)
def test_compiled_code_needs_a_home_that_lets_it_run(
    tmp_path: Path, options: str, runs: bool
) -> None:
    """The first options are Docker's own for a tmpfs, the second those of a volume."""
    mounting = f'mount -t tmpfs -o {options} none "$HOME" && exec "$0" -c "$1"'
    kept = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    ran = subprocess.run(
        [*APART, "sh", "-c", mounting, sys.executable, COMPILE],
        cwd=ROOT,
        env={**kept, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith("<CDLL " if runs else "None"), ran
    assert ("not noexec" in ran.stderr) is not runs
    assert list(tmp_path.iterdir()) == []  # it was another file system

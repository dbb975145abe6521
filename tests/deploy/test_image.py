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
from typing import NamedTuple

import pytest

from tests.deploy.stack import ROOT, read_compose


class Instruction(NamedTuple):
    keyword: str
    arguments: str


def stages() -> dict[str, list[Instruction]]:
    """The stages of the Dockerfile by name; the last one is the image by default."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    parsed: dict[str, list[Instruction]] = {}
    name = ""
    for keyword, arguments in (line.split(maxsplit=1) for line in lines):
        if keyword == "FROM":
            name = arguments.split()[-1]
            parsed[name] = []
        if name:
            parsed[name].append(Instruction(keyword, arguments))
    return parsed


def stage(name: str) -> list[Instruction]:
    """The instructions of a stage, after those of the stages that it builds on."""
    own = stages()[name]
    base = own[0].arguments.split()[0]
    return [*(stage(base) if base in stages() else []), *own]


def arguments_of(keyword: str, target: str = "cpu") -> list[str]:
    """The arguments of every instruction `keyword` of an image."""
    return [arguments for other, arguments in stage(target) if other == keyword]


def home_folder() -> str:
    [home] = re.findall(r"\bHOME=(\S+)", " ".join(arguments_of("ENV")))
    return home


def test_only_the_cuda_image_has_a_c_compiler() -> None:
    """Triton needs it. Both images have the libraries that are compiled when the wheel is built."""
    [command] = [run for run in arguments_of("RUN", "cuda") if "apt-get install" in run]
    assert {"gcc", "libc6-dev"} <= set(command.split())  # gcc includes cc and libgomp
    in_cpu_image = " ".join(arguments_of("RUN", "cpu"))
    assert "apt-get" not in in_cpu_image
    commands = [line.arguments for line in stage("build") if line.keyword == "RUN"]
    compiler, wheel = (
        next(number for number, run in enumerate(commands) if part in run)
        for part in ("install -y --no-install-recommends gcc libc6-dev", "pip wheel")
    )
    assert compiler < wheel


def test_base_images_are_arguments() -> None:
    text = (ROOT / "Dockerfile").read_text()
    defaults = dict(re.findall(r"^ARG (\w*BASE)=(\S+)$", text, re.MULTILINE))
    assert defaults.keys() == {"BASE", "NODE_BASE"}
    names = {name for _, name in re.findall(r"^FROM (\S+) AS (\w+)$", text, re.MULTILINE)}
    for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        assert base in names or base in ("${BASE}", "${NODE_BASE}"), base


def test_default_target_is_the_cpu_image_and_the_gpu_file_builds_the_other() -> None:
    assert list(stages())[-1] == "cpu"
    services = read_compose("deploy/compose.gpu.yaml")["services"]
    assert services["engine-1"]["build"]["target"] == "cuda"
    assert "target" not in services["gateway-1"]["build"]


def test_home_of_the_user_is_a_volume_owned_by_the_user() -> None:
    assert arguments_of("VOLUME") == [home_folder()]
    [command] = [run for run in arguments_of("RUN") if "useradd" in run]
    assert f"--uid {arguments_of('USER')[0]} " in command
    assert re.search(rf"install -d -o continuo\b.* {home_folder()}$", command)


def test_compiled_code_is_not_cached_on_a_tmpfs() -> None:
    """Docker mounts a tmpfs with `noexec`, and the root file system is read-only."""
    services = read_compose()["services"]
    own = {name: service for name, service in services.items() if "continuo:" in service["image"]}
    assert own.keys() >= {"engine-1", "engine-2", "gateway-1", "gateway-2"}
    for name, service in own.items():
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
        for instructions in stages().values()
        for keyword, arguments in instructions
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
sizes = ("-DDIM=16", "-DPAGE_SIZE=16", "-DBF16=0", "-DGROUPS=1")
print(compile.load_library("decoder.c", *sizes))
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

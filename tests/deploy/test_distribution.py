"""The wheel and the sdist: built, installed in an empty environment, and started."""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

from continuo.engine.device.native.prebuild import PROCESSOR_CLASSES, name_prebuilt
from tests.clients.conftest import ROOT, Server, start, stop
from tests.deploy.empty_environment import make_environment

pytestmark = pytest.mark.process

NOT_BUILT = not (ROOT / "realtime/server/assets/index.html").exists()
PAGE = "continuo/realtime/server/assets/index.html"
OTHERS_CONTINUO = ("__init__.py", "__main__.py", "cli.py", "config.py", "output.py", "py.typed")
"""Files that PyPI's package `continuo`, a music generator, installs in the folder `continuo`."""
PREBUILT = "continuo/engine/device/native/prebuilt"
BUNDLED_HEAD_SIZE = 32


class Built(NamedTuple):
    wheel: Path
    sdist: Path


class Environment(NamedTuple):
    folder: Path
    packages: Path

    @property
    def command(self) -> Path:
        return self.folder / "bin/continuo"


@pytest.fixture(scope="module", autouse=True)
def no_other_modules() -> Iterator[None]:
    """Leave it to the environments where their modules come from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


def build(source: Path, dist: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    options = [part for target in targets for part in ("-t", target)]
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(dist), *options],
        cwd=source,
        env=os.environ | {"CONTINUO_PREBUILT_HEAD_SIZES": str(BUNDLED_HEAD_SIZE)},
        capture_output=True,
        text=True,
    )


def files_of(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if NOT_BUILT and shutil.which("npm") is None:
        pytest.skip("Node.js is not installed, and the page, without which nothing is built")
    dist = tmp_path_factory.mktemp("dist")
    run = build(ROOT, dist, "wheel", "sdist")
    assert run.returncode == 0, run.stdout + run.stderr
    return Built(*dist.glob("*.whl"), *dist.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the sdist. Returns its folder."""
    parent = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built.sdist) as archive:
        archive.extractall(parent, filter="data")
    (folder,) = parent.iterdir()
    return folder


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install the wheel where nothing is but what it declares to need."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    return Environment(folder, make_environment(folder, built.wheel))


def test_wheel_installs_nothing_outside_its_own_packages(built: Built) -> None:
    """`continuo` is a namespace package: PyPI's `continuo` has files in the same folder."""
    installed = {tuple(name.split("/")[:2]) for name in files_of(built.wheel)}
    packages = {second for first, second in installed if first == "continuo"}
    assert packages == {"bench", "client", "engine", "realtime"}
    assert not packages & {name.partition(".")[0] for name in OTHERS_CONTINUO}
    assert {first for first, _ in installed} - {"continuo"} == {
        f"{'-'.join(built.wheel.name.split('-')[:2])}.dist-info"
    }


def test_wheel_has_page_types_and_licences(built: Built) -> None:
    files = files_of(built.wheel)
    demo = "continuo/engine/bundled/demo/LICENSE"
    page_licences = "continuo/realtime/server/assets/licenses.md"
    typed = {f"continuo/{package}/py.typed" for package in ("client", "engine", "realtime")}
    assert {PAGE, page_licences, *typed} <= files
    assert {name for name in files if name.startswith("continuo/engine/bundled/demo/")} >= {
        "continuo/engine/bundled/demo/model.safetensors",
        demo,
    }
    with zipfile.ZipFile(built.wheel) as archive:
        (metadata,) = (name for name in files if name.endswith(".dist-info/METADATA"))
        header: Message = Parser().parsestr(archive.read(metadata).decode())
        assert header["License-Expression"] == "Apache-2.0"
        assert set(header.get_all("License-File", [])) == {"LICENSE", demo}
        assert "Apache-2.0" in archive.read(demo).decode()
        assert "## markdown-it" in archive.read(page_licences).decode()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_wheel_has_the_native_decoder_for_classes_of_processors(built: Built) -> None:
    libraries = {Path(name).name for name in files_of(built.wheel) if name.startswith(PREBUILT)}
    classes = PROCESSOR_CLASSES.get(platform.machine(), {})
    defines = [f"DIM={BUNDLED_HEAD_SIZE}", "PAGE_SIZE=16", "BF16=0", "GROUPS=1"]
    assert {name_prebuilt("decoder.c", defines, name) for name in classes} <= libraries
    assert all(f"-DIM{BUNDLED_HEAD_SIZE}-" in name for name in libraries)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_installed_server_compiles_nothing(environment: Environment, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    running = start("--demo", command=[str(environment.command)], cwd=tmp_path, env=cache)
    try:
        children = f"/proc/{running.process.pid}/task/{running.process.pid}/children"
        maps = Path(f"/proc/{int(Path(children).read_text())}/maps").read_text()
    finally:
        assert stop(running) == 0
    assert f"{environment.packages}/{PREBUILT}/" in maps
    assert not (tmp_path / "cache").exists()


def test_wheel_from_the_sdist_is_the_same(built: Built, unpacked: Path, tmp_path: Path) -> None:
    assert not list(unpacked.rglob("node_modules"))
    run = build(unpacked, tmp_path, "wheel")
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert files_of(wheel) == files_of(built.wheel)


def test_nothing_is_built_without_the_page(unpacked: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(unpacked, source)
    (source / PAGE).unlink()
    for target in ("wheel", "sdist"):
        run = build(source, tmp_path / "dist", target)
        assert run.returncode != 0
        assert f"{PAGE} is missing" in run.stdout + run.stderr
    assert not list(tmp_path.glob("dist/continuo*"))


def test_installed_server_starts_beside_another_package_named_continuo(
    environment: Environment, tmp_path: Path
) -> None:
    for name in OTHERS_CONTINUO:
        (environment.packages / "continuo" / name).touch(exist_ok=False)
    running = start("--demo", command=[str(environment.command)], cwd=tmp_path)
    try:
        with urlopen(f"{running.url.removesuffix('/v1')}/") as page:
            assert b'<script type="module"' in page.read()
        chat, kill = printed_commands(running, "Chat", "kill engine")
        undisturbed = Pasted(chat, tmp_path).ask("tell me a story").finish()
        disturbed = Pasted(chat, tmp_path).ask("tell me a story")
        begun = disturbed.read_characters(5)
        subprocess.run(kill, shell=True, check=True)
        assert begun + disturbed.finish() == undisturbed
        assert len(undisturbed.split()) > 50
    finally:
        assert stop(running) == 0


def printed_commands(server: Server, *labels: str) -> list[str]:
    """Read what a demonstration prints after its address. Returns the commands at `labels`."""
    assert server.process.stdout is not None
    commands: dict[str, str] = {}
    for line in server.process.stdout:
        label, _, command = line.strip().partition("   ")
        commands[label] = command.strip()
        if line.startswith("Each time"):
            return [commands[label] for label in labels]
    raise AssertionError(f"the server ended, and printed {commands}")


class Pasted:
    """A printed chat command, in a shell."""

    def __init__(self, command: str, cwd: Path) -> None:
        self._shell = subprocess.Popen(
            command, shell=True, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, text: str) -> "Pasted":
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{text}\n")
        self._shell.stdin.close()
        return self

    def read_characters(self, count: int) -> str:
        assert self._shell.stdout is not None
        return self._shell.stdout.read(count)

    def finish(self) -> str:
        assert self._shell.stdout is not None
        with self._shell:
            rest = self._shell.stdout.read()
            assert self._shell.wait(60) == 0
        return rest


def test_installed_package_is_the_one_that_runs(environment: Environment, tmp_path: Path) -> None:
    script = (
        """import continuo.engine as e, continuo.realtime as r; print(e.__file__, r.__file__)"""
    )
    shown = subprocess.run(
        [environment.folder / "bin/python", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    for file in shown.stdout.split():
        assert Path(file).is_relative_to(environment.packages)


def test_environment_has_only_what_the_wheel_declares(environment: Environment) -> None:
    python = str(environment.folder / "bin/python")
    for module, is_declared in {"torch": True, "pytest": False, "hatchling": False}.items():
        run = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True)
        assert (run.returncode == 0) is is_declared, run.stderr
        assert is_declared or f"No module named '{module}'" in run.stderr

"""Printed commands, which can be pasted, and the time that a start took."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from continuo.realtime.server.own_command import (
    find_install_command,
    find_make_command,
    find_own_command,
)

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def use_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "venv" / "bin" / "continuo"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "serve"])
    monkeypatch.setenv("PATH", "/nowhere")


def test_command_on_the_search_path_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "venv" / "bin"))
    assert find_own_command() == "continuo"


def test_command_below_this_folder_is_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_own_command() == "venv/bin/continuo"


def test_command_elsewhere_is_an_absolute_path(tmp_path: Path) -> None:
    assert find_own_command() == str(tmp_path / "venv" / "bin" / "continuo")


def test_make_is_named_only_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_make_command("web", tmp_path) is None
    (tmp_path / "Makefile").write_text("web:\n\t@echo built\n")
    monkeypatch.chdir(tmp_path)
    assert find_make_command("web", tmp_path) == "make web"
    monkeypatch.chdir("/")
    elsewhere = find_make_command("web", tmp_path)
    assert elsewhere == f"make -C {tmp_path} web"


@pytest.mark.process
def test_printed_make_command_has_a_target_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    command = find_make_command("web")
    assert command is not None
    listed = subprocess.run([*shlex.split(command), "--dry-run"], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    assert "tools/build_web.sh" in listed.stdout


@pytest.mark.parametrize(("extra", "package"), [("otel", "opentelemetry-sdk"), ("bench", "pillow")])
def test_install_command_names_the_packages_of_the_extra(extra: str, package: str) -> None:
    words = shlex.split(find_install_command(extra))
    assert words[1:4] == ["-m", "pip", "install"]
    assert Path(words[0]).samefile(sys.executable)
    assert any(word.startswith(package) for word in words[4:])
    assert not any("continuo" in word for word in words[4:]), "it is not published"


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the age is that of the import")
def test_age_counts_from_the_start_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that ends in `exec`, as `make demo` does, is the process whose age is measured."""
    monkeypatch.undo()
    age = "from continuo.realtime.server.process.console import measure_age_s as age"
    program = f"import time; {age}; print(age(), time.monotonic())"
    before_s = time.monotonic()
    with subprocess.Popen(
        ["sh", "-c", 'echo begun; read line; exec "$0" -c "$1"', sys.executable, program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "begun\n"
        begun_s = time.monotonic()
        output, _ = shell.communicate("\n", timeout=60)
    age_s, now_s = map(float, output.split())
    tick_s = 0.02  # twice that of the kernel
    assert now_s - begun_s - tick_s < age_s < now_s - before_s + tick_s

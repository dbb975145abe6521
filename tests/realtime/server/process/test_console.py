import sys
from pathlib import Path

import pytest

from continuo.realtime.server.process.console import find_own_command


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

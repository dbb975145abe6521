"""The set-up program: what it reads in the output of pip, what it prints of each stage, and what it
says when one fails; and the command of `make demo`.
"""

import os
import pty
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.set_up import ROOT, PipOutput


def test_sizes_and_packages_are_read_from_the_output_of_pip(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.13.0-cp311-none-any.whl"
    wheel.write_bytes(bytes(3_000_000))
    output = PipOutput()
    assert output.size() == ""
    for line in (
        "Collecting numpy<3,>=2 (from continuo-server==0.1.0)",
        "Using cached numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)",
        f"Processing {wheel}",
        "Downloading sympy-1.14.0-py3-none-any.whl (6.3 MB)",
        "Downloading mpmath-1.3.0-py3-none-any.whl (536 kB)",
    ):
        output.read(line)
    assert output.size() == "7 MB downloaded, 20 MB cached"
    output.read("Downloading networkx-3.6-py3-none-any.whl (10.0 MB)")
    output.read("Progress 4000000 of 10000000")
    assert output.size() == "11 MB downloaded, 20 MB cached"
    output.read("Progress 10000000 of 10000000")
    assert output.size() == "17 MB downloaded, 20 MB cached"
    output.read("Successfully installed mpmath-1.3.0 numpy-2.4.6 sympy-1.14.0")
    assert output.package_count == 3


@pytest.mark.process
def test_unreachable_index_is_reported_with_advice(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("continuo-no-such-package>=1\n")
    unreachable = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }
    run = subprocess.run(
        [sys.executable, "tools/set_up.py", str(requirements)],
        cwd=ROOT,
        env={**os.environ, **unreachable},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    assert "No matching distribution found for continuo-no-such-package" in run.stderr
    assert "check the network" in run.stderr
    assert "Traceback" not in run.stderr


def write_wheel(path: Path) -> None:
    """Write a wheel of a little more than 1 MB without a module."""
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/weights", bytes(1_000_000))
        wheel.writestr(
            f"{info}/RECORD", "".join(f"{info}/{name},,\n" for name in ("WHEEL", "RECORD"))
        )


@pytest.fixture
def stage_command(tmp_path: Path) -> list[str]:
    """Make an environment named `small`. Returns the command of a stage that installs a wheel."""
    environment = tmp_path / ".venv-small"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "pip.pth").write_text("\n".join(folders))
    wheel, requirements = tmp_path / "tiny-1.0-py3-none-any.whl", tmp_path / "tiny.txt"
    write_wheel(wheel)
    requirements.write_text(f"{wheel}\n")
    return [str(environment / "bin/python"), "tools/set_up.py", str(requirements)]


STAGE_LINE = r"  small         what \S+/tiny\.txt lists, 1 packages, 1 MB cached, \d+ s"


@pytest.mark.process
def test_stage_is_one_line_in_a_pipe(stage_command: list[str]) -> None:
    run = subprocess.run(stage_command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(f"{STAGE_LINE}\n", run.stdout)


@pytest.mark.process
def test_stage_is_redrawn_in_a_terminal(stage_command: list[str]) -> None:
    master, slave = pty.openpty()
    with subprocess.Popen(stage_command, cwd=ROOT, stdout=slave, stderr=slave) as run:
        os.close(slave)
        shown = b""
        while data := read_terminal(master):
            shown += data
    os.close(master)
    assert run.returncode == 0
    first, *redrawn = shown.decode().split("\r\x1b[K")
    assert re.fullmatch(r"  small         what \S+/tiny\.txt lists", first)
    assert re.fullmatch(f"{STAGE_LINE}\r\n", redrawn[-1])
    assert all(each.startswith(first) for each in redrawn)


def read_terminal(master: int) -> bytes:
    """Return what a process has written to its terminal; nothing after its end."""
    try:
        return os.read(master, 4096)
    except OSError:
        return b""


@pytest.mark.process
@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ([], ["--demo"]),
        (["MODEL=Qwen/Qwen3-0.6B"], ["--demo", "--model", '"Qwen/Qwen3-0.6B"']),
        (["MODEL=/a b", "ARGS=--port 9000"], ["--demo", "--model", '"/a b"', "--port", "9000"]),
    ],
)
def test_make_demo_starts_the_model_that_is_named(variables: list[str], options: list[str]) -> None:
    """`--dry-run` prints the command, and starts nothing."""
    make = ["make", "--dry-run", "demo", *variables]
    env = {"PATH": os.environ["PATH"]}  # without the variables of the make that runs the tests
    shown = subprocess.run(make, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    *_, server = shown.stdout.split("exec ")
    assert server.split() == [".venv/bin/continuo", "serve", *" ".join(options).split()]

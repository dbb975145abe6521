"""The set-up program: what it reads in the output of pip, and what it says when that fails."""

import os
import subprocess
import sys
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

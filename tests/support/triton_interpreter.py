"""Run a program under Triton's interpreter. It is chosen when triton is imported, so the program
runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def run_interpreted(module: str, *arguments: str) -> None:
    """Run `python -m module arguments`. Raises AssertionError with its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

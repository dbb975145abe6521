"""The Triton kernels under Triton's interpreter, on the CPU, against one token at a time in fp64.

The interpreter is chosen when triton is imported, so the cases run in a process of their own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("rows", ["decode", "appends", "mixed"])
def test_like_the_obvious_way(rows: str) -> None:
    """One split and several, windows, page sizes, heads alone and shared, fp32 and fp16."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_cases", rows],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

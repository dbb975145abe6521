"""Tests of the Triton kernels under Triton's interpreter, against attention per token in fp64.

The interpreter is chosen when triton is imported, so the cases run in a process of their own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("rows", ["decode", "appends", "mixed"])
def test_triton_kernels_equal_fp64_attention(rows: str) -> None:
    """Cases: one split and several, windows, page sizes, MHA and GQA, fp32 and fp16."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_cases", rows],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Tests of the sampling kernels under Triton's interpreter, against the plain sampler and the slow
reference."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.triton_interpreter import run_interpreted

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
]


@pytest.mark.parametrize("case", ["small", "large", "lists", "failures", "masks", "min_p"])
def test_sampling_kernels_draw_the_ids_of_the_cpu(case: str) -> None:
    """Cases: ties, limits and penalties; several blocks of ids, fp32, fp16 and bf16; lists of the
    first candidates; rows without finite logits; packed masks."""
    run_interpreted("tests.support.triton_sampling_cases", case)

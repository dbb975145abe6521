"""Gathered, grouped, padded attention against one token at a time in fp64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from continuo.engine.device import step_inputs
from continuo.engine.device.attention.sdpa_backend import ReferenceBackend
from continuo.engine.device.model import KVShape
from tests.support import attention_oracle as oracle


@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("rows", list(oracle.ROWS.values()), ids=list(oracle.ROWS))
def test_like_the_obvious_way_with_garbage_in_every_unowned_slot(
    rows: list[tuple[int, int]], window: int | None, page_size: int
) -> None:
    made, pages = oracle.batch(rows, page_size)
    torch.manual_seed(0)
    pool = oracle.filled(made, pages, page_size, KVShape(2, 8, 12), torch.empty(0))
    query = torch.randn(sum(row.count for row in made.rows), 6, 8)
    step = step_inputs.build_inputs(made, page_size, torch.device("cpu"))
    found = ReferenceBackend().prepare(step, pool)(0, query, 0.3, window)
    wanted = oracle.obvious(made, pool, query, 0.3, window)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("rows", list(oracle.ROWS.values()), ids=list(oracle.ROWS))
def test_every_call_suits_torchs_fused_kernel(
    rows: list[tuple[int, int]], window: int | None
) -> None:
    """A mask of another rank, for one, would send SDPA to its slow path without a word."""
    made, pages = oracle.batch(rows, 16)
    pool = oracle.filled(made, pages, 16, KVShape(2, 8, 8), torch.empty(0))
    query = torch.randn(sum(row.count for row in made.rows), 6, 8)
    step = step_inputs.build_inputs(made, 16, torch.device("cpu"))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert ReferenceBackend().prepare(step, pool)(0, query, 0.3, window).isfinite().all()

"""Tests of the SDPA backend: gathered, grouped, padded attention against fp64 per token."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from continuo.engine.device import step_inputs
from continuo.engine.device.attention.sdpa_backend import ReferenceBackend
from continuo.engine.device.model import KVShape
from tests.support import attention_oracle as oracle

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("rows", list(oracle.BATCH_SHAPES.values()), ids=list(oracle.BATCH_SHAPES))
def test_sdpa_backend_equals_fp64_attention_despite_garbage_slots(
    rows: list[tuple[int, int]], window: int | None, page_size: int
) -> None:
    batch, pages = oracle.make_batch(rows, page_size)
    torch.manual_seed(0)
    pool = oracle.filled_pool(batch, pages, page_size, KVShape(2, 8, 12), torch.empty(0))
    query = torch.randn(sum(row.count for row in batch.rows), 6, 8)
    step = step_inputs.build_inputs(batch, page_size, torch.device("cpu"))
    output = ReferenceBackend().prepare(step, pool)(0, query, 0.3, window)
    expected = oracle.reference_attention(batch, pool, query, 0.3, window)
    assert output.shape == expected.shape
    assert (output - expected).abs().max() < 1e-5


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("rows", list(oracle.BATCH_SHAPES.values()), ids=list(oracle.BATCH_SHAPES))
def test_every_sdpa_call_is_eligible_for_flash_attention(
    rows: list[tuple[int, int]], window: int | None
) -> None:
    """A mask of another rank, for example, would silently select the slow path of SDPA."""
    batch, pages = oracle.make_batch(rows, 16)
    pool = oracle.filled_pool(batch, pages, 16, KVShape(2, 8, 8), torch.empty(0))
    query = torch.randn(sum(row.count for row in batch.rows), 6, 8)
    step = step_inputs.build_inputs(batch, 16, torch.device("cpu"))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert ReferenceBackend().prepare(step, pool)(0, query, 0.3, window).isfinite().all()

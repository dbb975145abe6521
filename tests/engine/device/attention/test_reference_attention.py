"""Tests of the SDPA backend: gathered, grouped, padded attention against fp64 per token."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from continuo.engine.device import step_inputs
from continuo.engine.device.attention import sdpa_backend
from continuo.engine.device.attention.sdpa_backend import ReferenceBackend
from continuo.engine.device.model import AttentionParams, KVShape
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
    params = AttentionParams(0.3, window)
    output = ReferenceBackend().prepare(step, pool)(0, query, params)
    expected = oracle.reference_attention(batch, pool, query, params)
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
        assert (
            ReferenceBackend()
            .prepare(step, pool)(0, query, AttentionParams(0.3, window))
            .isfinite()
            .all()
        )


@pytest.mark.parametrize("scores_max", [sdpa_backend.SCORES_MAX, 900])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("softcap", "has_sinks"), [(2.0, False), (None, True), (2.0, True)])
@pytest.mark.parametrize("rows", list(oracle.BATCH_SHAPES.values()), ids=list(oracle.BATCH_SHAPES))
def test_soft_caps_and_sinks_equal_fp64_attention(
    rows: list[tuple[int, int]],
    softcap: float | None,
    has_sinks: bool,
    window: int | None,
    scores_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`scores_max` 900: queries are computed in blocks."""
    monkeypatch.setattr(sdpa_backend, "SCORES_MAX", scores_max)
    batch, pages = oracle.make_batch(rows, 16)
    torch.manual_seed(0)
    pool = oracle.filled_pool(batch, pages, 16, KVShape(2, 8, 12), torch.empty(0))
    query = 3 * torch.randn(sum(row.count for row in batch.rows), 6, 8)
    step = step_inputs.build_inputs(batch, 16, torch.device("cpu"))
    params = AttentionParams(0.3, window, softcap, torch.randn(6) if has_sinks else None)
    output = ReferenceBackend().prepare(step, pool)(0, query, params)
    expected = oracle.reference_attention(batch, pool, query, params)
    assert (output - expected).abs().max() < 1e-5

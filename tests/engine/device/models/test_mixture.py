"""Tests of the matrix products of mixtures of experts."""

from __future__ import annotations

import pytest
import torch

from continuo.engine.device.models.mixture import multiply_each, multiply_grouped

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("counts", [[3, 0, 4, 1], [0, 0, 1, 0], [8, 0, 0, 0]])
def test_both_products_multiply_each_row_by_the_matrix_of_its_expert(counts: list[int]) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(sum(counts), 16), torch.randn(4, 24, 16)
    experts = [expert for expert, count in enumerate(counts) for _ in range(count)]
    expected = torch.stack([weights[e] @ row for e, row in zip(experts, x, strict=True)])
    for multiply in (multiply_each, multiply_grouped):
        found = multiply(x, weights, torch.tensor(counts))
        assert (found - expected).abs().max() < 1e-5

"""Tests of page moves between the device and the host tier, against plain lists."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine.batch import PageMove
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import KVShape
from tests.support.digest_runner import apply_moves

pytestmark = pytest.mark.torch

PAGES, HOST = 5, 3
MOVES = st.lists(
    st.one_of(
        st.builds(PageMove, st.just("copy"), st.integers(0, PAGES - 1), st.integers(0, PAGES - 1)),
        st.builds(PageMove, st.just("spill"), st.integers(0, PAGES - 1), st.integers(0, HOST - 1)),
        st.builds(PageMove, st.just("load"), st.integers(0, HOST - 1), st.integers(0, PAGES - 1)),
    ),
    max_size=12,
)


@given(MOVES)
def test_page_moves_are_applied_in_order(moves: list[PageMove]) -> None:
    pool = KVPool([KVShape(2, 4, 4), KVShape(1, 4, 2)], PAGES, 2, torch.empty(0), HOST)
    for layer in (*pool.keys, *pool.values):
        layer.copy_(torch.arange(PAGES, dtype=layer.dtype)[:, None, None, None].expand_as(layer))
    device, host = [[float(n)] for n in range(PAGES)], [[0.0] for _ in range(HOST)]
    pool.move(moves)
    apply_moves(moves, device, host)
    for layer in (*pool.keys, *pool.values):
        assert layer.flatten(1).unique(dim=1).tolist() == device

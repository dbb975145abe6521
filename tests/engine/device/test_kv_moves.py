"""Tests of page moves between the device and the host tier, against plain lists."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from continuo.engine.batch import FULL_GROUP, STATE_POOL, PageMove, WindowGroup
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import KVShape, LayerMemory, StateTensor
from tests.support.digest_runner import apply_moves

pytestmark = pytest.mark.torch

PAGES, HOST = 5, 3
GROUPS = (FULL_GROUP, 1, STATE_POOL)
MOVES = st.lists(
    st.one_of(
        [
            st.builds(
                PageMove,
                st.just(kind),
                st.integers(0, sources - 1),
                st.integers(0, targets - 1),
                st.sampled_from(GROUPS),
            )
            for kind, sources, targets in (
                ("copy", PAGES, PAGES),
                ("spill", PAGES, HOST),
                ("load", HOST, PAGES),
                ("blank", PAGES, PAGES),
            )
        ]
    ),
    max_size=12,
)


@given(MOVES)
def test_page_moves_are_applied_in_order(moves: list[PageMove]) -> None:
    memory = [
        LayerMemory(KVShape(2, 4, 4)),
        LayerMemory(KVShape(1, 4, 2), window=7),
        LayerMemory(state=(StateTensor((3, 2)), StateTensor((4,)))),
    ]
    windows = (WindowGroup(7, PAGES, HOST),)
    pool = KVPool(memory, PAGES, 2, torch.empty(0), HOST, windows, PAGES, HOST)
    assert pool.groups[:2] == [FULL_GROUP, 1]
    tensors = {
        FULL_GROUP: [pool.keys[0], pool.values[0]],
        1: [pool.keys[1], pool.values[1]],
        STATE_POOL: [*pool.states[2]],
    }
    for tensor in (each for group in tensors.values() for each in group):
        numbers = torch.arange(PAGES, dtype=tensor.dtype)
        tensor.copy_(numbers.view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))
    pool.move(moves)
    for group in GROUPS:
        device, host = [[float(n)] for n in range(PAGES)], [[0.0] for _ in range(HOST)]
        apply_moves(moves, device, host, group, blank=math.nan)
        for tensor in tensors[group]:
            contents = tensor.flatten(1).nan_to_num(-1.0).unique(dim=1)
            assert contents.tolist() == torch.tensor(device).nan_to_num(-1.0).tolist()

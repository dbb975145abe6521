"""Tests of the KV pool: page moves, the slots of tokens, and the size of the pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continuo.engine.batch import PageMove
from continuo.engine.config import EngineConfig
from continuo.engine.device import kv_sizing
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.kv_sizing import CPU_POOL_BYTES_MAX, bytes_per_token, size_pool
from continuo.engine.device.model import KVShape
from continuo.engine.errors import ModelError

pytestmark = pytest.mark.torch

SHAPES = [KVShape(2, 4, 4), KVShape(1, 6, 3)]
EMPTY = torch.empty(0)
CPU = torch.device("cpu")

moves = st.lists(
    st.builds(
        PageMove,
        st.sampled_from(["copy", "spill", "load"]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(moves)
def test_batched_page_moves_equal_sequential_moves(page_moves: list[PageMove]) -> None:
    pool = KVPool(SHAPES, pages=4, page_size=2, like=EMPTY, host_pages=4)
    device, host = [f"page {n}" for n in range(4)], ["nothing"] * 4
    for layer in pool.keys + pool.values:
        layer.copy_(torch.arange(1.0, 5.0).view(4, 1, 1, 1).expand_as(layer))
    for kind, source, target in page_moves:
        if kind == "copy":
            device[target] = device[source]
        elif kind == "spill":
            host[target] = device[source]
        else:
            device[target] = host[source]
    pool.move(page_moves)
    names = {f"page {n}": n + 1.0 for n in range(4)} | {"nothing": 0.0}
    for layer in pool.keys + pool.values:
        for page, name in enumerate(device):
            assert (layer[page] == names[name]).all()


def test_token_is_written_to_its_page_head_and_slot() -> None:
    pool = KVPool(SHAPES, pages=5, page_size=3, like=EMPTY)
    pages, slots = torch.tensor([4, 0]), torch.tensor([2, 1])
    for layer, shape in enumerate(SHAPES):
        key = torch.randn(2, shape.heads, shape.key_dim)
        value = torch.randn(2, shape.heads, shape.value_dim)
        pool.write(layer, pool.map_slots(pages, slots, shape.heads), key, value)
        for token in range(2):
            page, slot = int(pages[token]), int(slots[token])
            assert torch.equal(pool.keys[layer][page, :, slot], key[token])
            assert torch.equal(pool.values[layer][page, :, slot], value[token])
        written = (pool.keys[layer] != 0).any(-1).sum()
        assert written == 2 * shape.heads


def test_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert bytes_per_token(SHAPES, torch.bfloat16) == 2 * (2 * 8 + 1 * 9)


def test_pool_size_follows_the_config() -> None:
    assert size_pool(EngineConfig(num_gpu_blocks_override=40), 100, 4096, CPU) == (40, 640)
    assert size_pool(EngineConfig(num_gpu_blocks_override=40), 100, 512, CPU) == (40, 512)
    assert size_pool(EngineConfig(kv_cache_memory_bytes=160_000), 100, 4096, CPU) == (100, 1600)
    short = EngineConfig(kv_cache_memory_bytes=160_000, max_model_len=100)
    assert size_pool(short, 100, 4096, CPU) == (100, 100)


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(num_gpu_blocks_override=4, max_model_len=100),
        EngineConfig(num_gpu_blocks_override=0),
        EngineConfig(kv_cache_memory_bytes=100),
        EngineConfig(max_model_len=4097),
    ],
)
def test_pool_that_cannot_hold_one_session_is_refused(config: EngineConfig) -> None:
    with pytest.raises(ModelError, match="max_model_len"):
        size_pool(config, 100, 4096, CPU)


def test_default_pool_is_a_quarter_of_memory_but_holds_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(kv_sizing, "MEMINFO", meminfo)
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 400 kB\n")  # a quarter: 102,400 bytes
    assert size_pool(EngineConfig(), 100, 4096, CPU) == (64, 1024)
    assert size_pool(EngineConfig(max_model_len=4096), 100, 4096, CPU) == (256, 4096)
    few = EngineConfig(max_model_len=32, max_num_seqs=3)
    assert size_pool(few, 100, 4096, CPU) == (6, 32)
    meminfo.unlink()
    assert size_pool(EngineConfig(), 1000, 10**9, CPU)[0] == CPU_POOL_BYTES_MAX // 16000

"""Tests of the KV pool: page moves, the slots of tokens, and the size of the pool."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continuo.engine import available_memory
from continuo.engine.available_memory import CPU_POOL_BYTES_MAX
from continuo.engine.batch import FULL_GROUP, PageMove, WindowGroup
from continuo.engine.config import EngineConfig
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.kv_sizing import bytes_per_token, default_pool_bytes, measure_sessions
from continuo.engine.device.model import KVShape, LayerMemory, StateTensor
from continuo.engine.errors import ModelError
from continuo.engine.memory_plan import MemoryPlan, plan_memory, size_pool

pytestmark = pytest.mark.torch

SHAPES = [KVShape(2, 4, 4), KVShape(1, 6, 3)]
MEMORY = [LayerMemory(shape) for shape in SHAPES]
EMPTY = torch.empty(0)
CPU = torch.device("cpu")

moves = st.lists(
    st.builds(
        PageMove,
        st.sampled_from(["copy", "spill", "load"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.just(FULL_GROUP),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(moves)
def test_batched_page_moves_equal_sequential_moves(page_moves: list[PageMove]) -> None:
    pool = KVPool(MEMORY, pages=4, page_size=2, like=EMPTY, host_pages=4)
    device, host = [f"page {n}" for n in range(4)], ["nothing"] * 4
    for layer in pool.keys + pool.values:
        layer.copy_(torch.arange(1.0, 5.0).view(4, 1, 1, 1).expand_as(layer))
    for kind, source, target, _ in page_moves:
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
    pool = KVPool(MEMORY, pages=5, page_size=3, like=EMPTY)
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


def test_pool_takes_memory_as_it_is_written() -> None:
    def resident_bytes() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * mmap.PAGESIZE

    memory = [LayerMemory(KVShape(1, 1024, 1024), state=(StateTensor((1024,)),))]
    before = resident_bytes()
    pool = KVPool(memory, 4096, 16, EMPTY, host_pages=1024, state_slots=1024)
    assert pool.main_memory_bytes > 640 << 20
    assert resident_bytes() - before < 64 << 20
    pool.keys[0][:2048] = 1.0  # 128 MiB
    assert 128 << 20 <= resident_bytes() - before < 192 << 20
    assert not pool.keys[0][2048:].any()


def test_bytes_per_token_counts_keys_and_values_of_all_layers() -> None:
    assert bytes_per_token(SHAPES, torch.bfloat16) == 2 * (2 * 8 + 1 * 9)


def size(config: EngineConfig, limit: int = 4096, token_bytes: int = 100) -> tuple[int, int]:
    return size_pool(config, token_bytes, limit, default_pool_bytes(CPU))


def test_pool_size_follows_the_config() -> None:
    assert size(EngineConfig(num_gpu_blocks_override=40)) == (40, 640)
    assert size(EngineConfig(num_gpu_blocks_override=40), 512) == (40, 512)
    assert size(EngineConfig(kv_cache_memory_bytes=160_000)) == (100, 1600)
    assert size(EngineConfig(kv_cache_memory_bytes=160_000, max_model_len=100)) == (100, 100)


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
        size(config)


def test_default_pool_is_a_quarter_of_memory_but_holds_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    monkeypatch.setattr(available_memory, "ROOT", tmp_path)
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 400 kB\n")  # a quarter: 102,400 bytes
    assert size(EngineConfig()) == (64, 1024)
    assert size(EngineConfig(max_model_len=4096)) == (256, 4096)
    assert size(EngineConfig(max_model_len=32, max_num_seqs=3)) == (6, 32)
    meminfo.unlink()
    assert size(EngineConfig(), 10**9, 1000)[0] == CPU_POOL_BYTES_MAX // 16000


FULL, WINDOW = LayerMemory(KVShape(1, 8, 8)), LayerMemory(KVShape(1, 8, 8), window=100)
STATE = LayerMemory(state=(StateTensor((10, 10)), StateTensor((50,), torch.bfloat16)))
FP32 = torch.float32


def plan(config: EngineConfig, *memory: LayerMemory, limit: int = 4096) -> MemoryPlan:
    return plan_memory(config, measure_sessions(memory, FP32), limit, default_pool_bytes(CPU), 32)


def test_memory_of_full_layers_alone_is_one_pool() -> None:
    config = EngineConfig(num_gpu_blocks_override=40)
    assert plan(config, FULL, FULL) == MemoryPlan(40, 640)


def test_window_not_shorter_than_the_longest_session_counts_as_full() -> None:
    config = EngineConfig(num_gpu_blocks_override=40, max_model_len=100)
    assert plan(config, FULL, WINDOW) == MemoryPlan(40, 100)


def test_configured_memory_is_shared_out_within_its_bounds() -> None:
    """A full page and a window page take 1,024 bytes each, a state slot 500."""
    config = EngineConfig(kv_cache_memory_bytes=1_000_000, max_num_seqs=8)
    sizes = plan(config, FULL, WINDOW, STATE)
    assert [group.window for group in sizes.windows] == [100]
    lease = 100 // 16 + 2
    assert sizes.windows[0].pages == 2 * 8 * lease + 64 // 16 + 1
    assert sizes.state_slots == 8 * 9
    taken = 1024 * (sizes.pages + sizes.windows[0].pages) + 500 * sizes.state_slots
    assert 1_000_000 - 1024 < taken <= 1_000_000
    assert sizes.max_model_len == 4096


def test_windows_and_states_take_at_most_half_of_scarce_memory() -> None:
    config = EngineConfig(kv_cache_memory_bytes=200_000, max_num_seqs=64)
    sizes = plan(config, FULL, WINDOW, STATE)
    assert 1024 * sizes.windows[0].pages + 500 * sizes.state_slots <= 100_000
    assert 1024 * sizes.pages >= 98_000


def test_windows_are_not_scarcer_than_full_layers_for_long_sessions() -> None:
    """A session of 8,192 tokens has 512 full pages, and 8 of the window, of 1,024 bytes each."""
    config = EngineConfig(kv_cache_memory_bytes=100_000_000, max_num_seqs=2)
    sizes = plan(config, FULL, WINDOW, limit=100_000)
    assert sizes.count_sessions(8192, 16) == 100_000_000 // (1024 * 520) == 187
    assert sizes.count_sessions(4096, 16) == 187
    assert sizes.count_sessions(16_384, 16) == 93


def test_model_without_full_layers_is_not_limited_by_its_pages() -> None:
    config = EngineConfig(num_gpu_blocks_override=20)
    sizes = plan(config, WINDOW, WINDOW)
    assert (sizes.windows, sizes.max_model_len) == ((WindowGroup(100, 20),), 4096)
    assert not sizes.has_full_layers


def test_host_tier_is_shared_out_like_the_device() -> None:
    config = EngineConfig(
        kv_cache_memory_bytes=1_000_000, kv_offloading_size=2_000_000 / (1 << 30), max_num_seqs=8
    )
    sizes = plan(config, FULL, WINDOW, STATE)
    assert sizes.host_pages == pytest.approx(2 * sizes.pages, rel=0.01)
    assert sizes.windows[0].host_pages == pytest.approx(2 * sizes.windows[0].pages, rel=0.01)
    assert sizes.host_state_slots == pytest.approx(2 * sizes.state_slots, rel=0.02)
    assert sizes.state_bytes == 100 * 4 + 50 * 2


def test_memory_too_small_for_the_window_of_one_session_is_refused() -> None:
    with pytest.raises(ModelError, match="the windows and states of one session"):
        plan(EngineConfig(kv_cache_memory_bytes=5_000), FULL, WINDOW, STATE)


def test_pool_smaller_than_a_window_is_refused() -> None:
    with pytest.raises(ModelError, match="does not hold a window of 100 tokens"):
        plan(EngineConfig(num_gpu_blocks_override=8), WINDOW)


def test_sessions_that_fit_are_limited_by_the_scarcest_pool() -> None:
    plan = MemoryPlan(pages=100, max_model_len=1000)
    assert plan.count_sessions(160, 16) == 10
    assert plan.count_sessions(161, 16) == 9
    windowed = replace(plan, windows=(WindowGroup(100, 24), WindowGroup(32, 90)))
    assert windowed.count_sessions(160, 16) == 24 // 8
    assert windowed.count_sessions(16, 16) == 24
    hybrid = replace(windowed, state_slots=20, pages=1, has_full_layers=False)
    assert hybrid.count_sessions(160, 16) == 20 // 9

"""Tests on a CUDA device: the compiled kernels, and the whole runner."""

from __future__ import annotations

import importlib.util
import math
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from continuo.engine.batch import PageMove, SampleParams
from continuo.engine.device import step_inputs
from continuo.engine.device.attention.sdpa_backend import ReferenceBackend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionParams, KVShape, LayerMemory
from continuo.engine.device.sampling import draw
from continuo.engine.sampling import Sampling
from tests.engine.device.test_sampling import Only
from tests.support import attention_oracle as cases
from tests.support import transformers_oracle as oracle
from tests.support.digest_runner import apply_moves
from tests.support.sampling_reference import reference_ids

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("rows", list(cases.BATCH_SHAPES.values()), ids=list(cases.BATCH_SHAPES))
def test_attention_kernels_equal_the_reference(
    rows: list[tuple[int, int]], window: int | None, page_size: int, dtype: torch.dtype
) -> None:
    from continuo.engine.device.attention.triton_backend import TritonBackend

    device = torch.device("cuda")
    batch, pages = cases.make_batch(rows, page_size)
    torch.manual_seed(0)
    like = torch.empty(0, dtype=dtype, device=device)
    step = step_inputs.build_inputs(batch, page_size, device)
    for shape, heads in ((KVShape(2, 64, 64), 6), (KVShape(1, 48, 80), 3)):
        pool = cases.filled_pool(batch, pages, page_size, shape, like)
        query = torch.randn(sum(row.count for row in batch.rows), heads, shape.key_dim).to(like)
        sinks = torch.randn(heads).to(like)
        for params in (AttentionParams(0.1, window), AttentionParams(0.1, window, 2.0, sinks)):
            expected = cases.reference_attention(batch, pool, query, params)
            for backend in (TritonBackend(1), TritonBackend(500), ReferenceBackend()):
                actual = backend.prepare(step, pool)(0, query, params)
                assert (actual - expected).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("operation", ["add_norm", "attend", "gate"])
def test_fused_operations_equal_the_plain_ones(operation: str, dtype: torch.dtype) -> None:
    from tests.support import triton_layer_cases as layer_cases

    torch.manual_seed(0)
    with torch.inference_mode():
        layer_cases.OPERATION_CHECKS[operation](torch.empty(0, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [900, 151_936])
def test_draws_equal_those_of_the_cpu(vocab_size: int, dtype: torch.dtype) -> None:
    from tests.support import triton_sampling_cases as sampling_cases

    generator = torch.Generator().manual_seed(0)
    for spread in (0.01, 3.0):
        logits = (torch.randn(16, vocab_size, generator=generator) * spread).to(dtype)
        samples = sampling_cases.random_samples(random.Random(0), 16)
        drawn = draw(logits.cuda(), samples).to_host()
        torch.cuda.synchronize()
        expected = draw(logits, samples).ids.tolist()
        for row, (id, other) in enumerate(zip(drawn.ids.tolist(), expected, strict=True)):
            if id != other:  # within rounding of a border
                assert id in reference_ids(logits[row].tolist(), samples[row]), samples[row]


def test_warm_up_measures_every_variant_of_attention(tmp_path: Path) -> None:
    from continuo.engine.device.attention.triton_backend import TritonBackend

    oracle.FAMILIES["qwen3"]().save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, device="cuda", kv_cache_memory_bytes=8 << 20)
    assert isinstance(runner.attention, TritonBackend)
    compiled = dict(runner.attention.options)
    assert len(compiled) == 2  # rows of one new token, and longer ones
    oracle.serve_mixed_batches(runner, oracle.random_prompts(2, [3, 37, 70, 1, 40]), count=8)
    assert runner.attention.options == compiled


def test_masked_draws_equal_those_of_the_cpu() -> None:
    logits = torch.randn(4, 900, generator=torch.Generator().manual_seed(0))
    params = [
        SampleParams(),
        SampleParams(Sampling(temperature=0.8), uniform=0.7),
        SampleParams(Sampling(logprobs=2)),
        SampleParams(),
    ]
    samples = [
        msgspec.structs.replace(sample, mask=Only(set(range(n, 900, 7)), 900))
        for n, sample in enumerate(params)
    ]
    drawn_on_device = draw(logits.cuda(), samples).to_host()
    torch.cuda.synchronize()
    assert drawn_on_device.ids.tolist() == draw(logits, samples).ids.tolist()


@pytest.mark.parametrize("name", list(oracle.FAMILIES))
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_greedy_ids_in_mixed_batches_on_cuda_equal_transformers(
    name: str, page_size: int, tmp_path: Path
) -> None:
    from continuo.engine.device import step_graphs

    model = oracle.FAMILIES[name]()
    model.save_pretrained(tmp_path)
    prompts = oracle.random_prompts(2, [3, 37, 70, 1, 40])
    runner = oracle.build_cpu_runner(
        tmp_path, device="cuda", block_size=page_size, kv_cache_memory_bytes=8 << 20
    )
    assert runner.geometry.steps_ahead == 1
    assert (runner.graphs is not None) == step_graphs.is_capturable(runner.model, runner.attention)
    actual = oracle.serve_mixed_batches(runner, prompts, count=8)
    assert actual == [oracle.greedy_continuation(model, ids, 8) for ids in prompts]


def test_replayed_steps_have_the_logits_of_launched_ones(tmp_path: Path) -> None:
    """Steps of one size after another: what one leaves in the buffers is not read by the next."""
    oracle.FAMILIES["qwen3"]().save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, device="cuda", kv_cache_memory_bytes=8 << 20)
    graphs = runner.graphs
    assert graphs is not None
    prompts = oracle.random_prompts(3, [5, 90, 17, 1, 64, 33])
    replayed = oracle.serve_mixed_batches(runner, prompts, count=12)
    again = oracle.serve_mixed_batches(runner, prompts[::-1], count=12)[::-1]
    runner.graphs = None
    assert replayed == again == oracle.serve_mixed_batches(runner, prompts, count=12)


PAGES, SLOTS = 24, 16


def random_moves(source: random.Random) -> list[PageMove]:
    """Runs of moves of one kind, like those of a cache that spills and recalls."""
    moves: list[PageMove] = []
    for _ in range(source.randint(1, 4)):
        kind = source.choice(("copy", "spill", "load", "blank"))
        source_count = SLOTS if kind == "load" else PAGES
        target_count = SLOTS if kind == "spill" else PAGES
        for _ in range(source.randint(1, 12)):
            moves.append(
                PageMove(kind, source.randrange(source_count), source.randrange(target_count))
            )
    return moves


def filled_pool() -> KVPool:
    like = torch.empty(0, dtype=torch.bfloat16, device="cuda")
    memory = [LayerMemory(KVShape(2, 64, 64)), LayerMemory(KVShape(1, 48, 80))]
    pool = KVPool(memory, PAGES, 16, like, SLOTS)
    for layer in (*pool.keys, *pool.values):
        layer.copy_(torch.arange(PAGES, device="cuda")[:, None, None, None].expand_as(layer))
    return pool


@pytest.mark.parametrize("seed", range(8))
def test_page_moves_queued_behind_a_busy_device_are_in_order(seed: int) -> None:
    source, pool = random.Random(seed), filled_pool()
    device, host = [[float(n)] for n in range(PAGES)], [[0.0] for _ in range(SLOTS)]
    torch.cuda._sleep(100_000_000)  # pyright: ignore
    for _ in range(30):
        moves = random_moves(source)
        pool.move(moves)
        apply_moves(moves, device, host, blank=math.nan)
    for layer in (*pool.keys, *pool.values):
        contents = layer.cpu().float().flatten(1).nan_to_num(-1.0).unique(dim=1)
        assert contents.tolist() == torch.tensor(device).nan_to_num(-1.0).tolist()


def test_page_moves_do_not_block_the_host() -> None:
    """The host continues while the device is busy with earlier launches."""
    pool = filled_pool()
    spill = [PageMove("spill", n, (n * 5) % SLOTS) for n in range(SLOTS)]
    moves = [
        *spill,
        *(PageMove("load", n, n) for n in range(SLOTS)),
        PageMove("copy", 0, PAGES - 1),
    ]
    pool.move(moves)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # pyright: ignore
    busy = torch.cuda.Event()
    busy.record()
    pool.move(moves)
    assert not busy.query()


LOSE_THE_CONTEXT = """
import torch
from continuo.engine.device.runner import TorchRunner

runner = TorchRunner.__new__(TorchRunner)
runner.device = torch.device("cuda")
table = torch.zeros(4, device="cuda")
try:
    table @ torch.zeros(5, device="cuda")
except RuntimeError:
    assert runner.is_usable(), "only this step fails"
try:
    table[torch.tensor([9], device="cuda")].sum().item()
except RuntimeError:
    assert not runner.is_usable(), "every later call fails too"
    raise SystemExit(7)
"""


def test_lost_cuda_context_is_distinguished_from_a_failed_step() -> None:
    """The context is lost in a separate process."""
    assert subprocess.run([sys.executable, "-c", LOSE_THE_CONTEXT], check=False).returncode == 7

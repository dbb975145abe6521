"""Program run under TRITON_INTERPRET=1 (see test_layer_kernels.py): compares the fused operations
of a decoder layer, and a whole decoder on them, with the plain ones, and exits with 1 if they
differ."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.device import step_graphs, step_inputs
from continuo.engine.device.attention.backend import PagedAttention, StepAttention
from continuo.engine.device.attention.triton_backend import TritonBackend
from continuo.engine.device.kernels.layer_kernels import TritonOperations
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import AttentionParams, KVShape, LayerMemory
from continuo.engine.device.models.decoder import Decoder
from continuo.engine.device.models.layers import GELU_TANH
from continuo.engine.device.models.operations import (
    PLAIN,
    AttentionHeads,
    Operations,
    Rotation,
)
from continuo.engine.device.models.rms_norm import RMSNorm
from tests.support import attention_oracle, transformers_oracle
from tests.support.architectures import ARCHITECTURES

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Tolerance by dtype, relative to 1 + the expected value. The plain operations round more often."""


def check_add_norm(like: Tensor) -> None:
    for size, is_centered, scale in ((48, False, 1.0), (100, True, 0.5), (1, False, 1.0)):
        norm = RMSNorm(size, 1e-5, like, is_centered=is_centered)
        norm.weight.normal_(1.0, 0.3)
        for addend in (None, torch.randn(3, size).to(like)):
            x = torch.randn(3, size).to(like)
            expected = PLAIN.add_norm(x.clone(), addend, scale, norm)
            found = TritonOperations().add_norm(x.clone(), addend, scale, norm)
            check_equal(found[0], expected[0], f"sum of {size}")
            check_equal(found[1], expected[1], f"norm of {size}")


def check_gate(like: Tensor) -> None:
    for act in (F.silu, GELU_TANH, F.relu):
        for size in (5, 1100):
            both = torch.randn(2, 2 * size).to(like)
            found = TritonOperations().gate(both.clone(), act)
            check_equal(found, PLAIN.gate(both.clone(), act), f"gate of {size}")


class ReturnQueries(StepAttention):
    """Returns the queries in place of attention, so that they can be compared."""

    def __call__(self, layer: int, query: Tensor, params: AttentionParams) -> Tensor:
        return query


HEADS = [  # queries, keys, values, dim, rotated elements, norm, values normalized
    (4, 2, 2, 16, 16, True, False),
    (3, 1, 1, 24, 24, False, False),
    (3, 3, 0, 20, 8, True, True),
    (2, 1, 0, 8, 0, False, False),
    (5, 0, 0, 16, 16, True, False),
    (70, 1, 1, 16, 16, False, True),
]


def check_attend(like: Tensor) -> None:
    batch, pages = attention_oracle.make_batch([(5, 1), (3, 4), (0, 2)], page_size=4)
    step = step_inputs.build_inputs(batch, 4, like.device)
    for queries, keys, values, dim, rotated, has_norm, normalizes_values in HEADS:
        norm = RMSNorm(dim, 1e-5, like, rows=queries + keys) if has_norm else None
        if norm is not None:
            norm.weight.normal_(1.0, 0.3)
        params = AttentionParams(1.0)
        heads = AttentionHeads(0, queries, keys, values, dim, params, 1e-5, norm, normalizes_values)
        rotation = None
        if rotated:
            table = torch.randn(7, 2, rotated).to(like).unsqueeze(2)
            rotation = table[:, 0], table[:, 1]
        wide = torch.randn(7, (queries + keys + values) * dim + 8).to(like)
        qkv = wide[:, 8:]  # beside a gate

        def run(
            operations: Operations,
            heads: AttentionHeads = heads,
            qkv: Tensor = qkv,
            rotation: Rotation | None = rotation,
        ) -> tuple[Tensor, KVPool]:
            shape = KVShape(max(heads.keys, 1), heads.dim, heads.dim)
            pool = KVPool([LayerMemory(shape)], pages, 4, like)
            attention = PagedAttention(step, pool, ReturnQueries())
            return operations.attend(qkv.clone(), heads, rotation, attention), pool

        (found, found_pool), (expected, expected_pool) = run(TritonOperations()), run(PLAIN)
        check_equal(found, expected, f"queries of {heads}")
        check_equal(found_pool.keys[0], expected_pool.keys[0], f"keys of {heads}")
        check_equal(found_pool.values[0], expected_pool.values[0], f"values of {heads}")
        assert found_pool.keys[0].any() == bool(keys)


def check_equal(found: Tensor, expected: Tensor, what: str) -> None:
    assert found.shape == expected.shape, what
    assert found.dtype == expected.dtype, what
    error = ((found - expected).abs() / (1 + expected.abs())).max().item()
    assert error < TOLERANCE[found.dtype], f"{what}, {found.dtype}: {error}"


OPERATION_CHECKS = {"add_norm": check_add_norm, "attend": check_attend, "gate": check_gate}
"""Checks of an operation, with tensors of the dtype and device of their argument."""


def check_decoder(name: str) -> None:
    """Compare the logits of a prompt in chunks, decode steps included."""
    makers = {row.models: row.make for row in ARCHITECTURES} | transformers_oracle.FAMILIES
    with tempfile.TemporaryDirectory() as folder:
        makers[name]().save_pretrained(folder)
        runner = transformers_oracle.build_cpu_runner(
            Path(folder), kv_cache_memory_bytes=8 << 20, steps_ahead=1
        )
    [ids] = transformers_oracle.random_prompts(1, [23])
    cuts = [1, 5, 22]
    expected = transformers_oracle.chunk_end_logits(runner, ids, cuts)
    assert isinstance(runner.model, Decoder)
    runner.model.operations = TritonOperations()
    runner.attention = TritonBackend(8)
    found = transformers_oracle.chunk_end_logits(runner, ids, cuts)
    error = (found - expected).abs().max() / expected.abs().max()
    print(name, error.item())
    assert error < 1e-4


def check_graphs(name: str) -> None:
    """Serve mixed batches with the layers of graphs that are called in place of captured, and
    compare the ids with those of steps without graphs."""
    makers = {row.models: row.make for row in ARCHITECTURES} | transformers_oracle.FAMILIES
    with tempfile.TemporaryDirectory() as folder:
        makers[name]().save_pretrained(folder)
        runner = transformers_oracle.build_cpu_runner(
            Path(folder), kv_cache_memory_bytes=8 << 20, steps_ahead=1
        )
    assert isinstance(runner.model, Decoder)
    prompts = transformers_oracle.random_prompts(2, [3, 1, 18])
    expected = transformers_oracle.serve_mixed_batches(runner, prompts, count=4)
    runner.model.operations = TritonOperations()
    runner.attention = backend = TritonBackend(8)
    assert step_graphs.is_capturable(runner.model, backend)
    captured = replayed = 0

    def call(layers: step_graphs.Layers) -> step_graphs.Layers:
        nonlocal captured
        captured += 1

        def replay() -> tuple[Tensor, Tensor | None]:
            nonlocal replayed
            replayed += 1
            return layers()

        return replay

    runner.graphs = step_graphs.StepGraphs(runner.pool)
    runner.graphs.capture(
        *(runner.model, runner.pool, backend, (1, 3, 20), call, lambda fraction: None)
    )
    assert captured == 5
    found = transformers_oracle.serve_mixed_batches(runner, prompts, count=4)
    print(name, replayed, "steps replayed")
    assert found == expected
    assert replayed > 3


def main(case: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if case == "decoder":
        for name in names:
            check_decoder(name)
        return
    if case == "graphs":
        for name in names:
            check_graphs(name)
        return
    for dtype in TOLERANCE:
        like = torch.empty(0, dtype=dtype)
        OPERATION_CHECKS[case](like)


if __name__ == "__main__":
    with torch.inference_mode():
        main(sys.argv[1], sys.argv[2:])

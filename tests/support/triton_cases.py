"""Program run under TRITON_INTERPRET=1 (see test_paged_triton.py): compares the Triton kernels with
the reference on one set of rows, and exits with 1 if they differ."""

from __future__ import annotations

import sys

import torch

from continuo.engine.device import step_inputs
from continuo.engine.device.attention import triton_backend
from continuo.engine.device.model import KVShape
from tests.support import attention_oracle as oracle

BATCH_SHAPES = {
    "decode": [(50, 1), (3, 1), (0, 1), (200, 1)],
    "appends": [(40, 7), (0, 9), (100, 3)],
    "mixed": [(10, 1), (0, 40), (130, 16), (12, 1)],
}
CASES = [  # page size, window, number of programs, query heads, shape of KV
    (16, None, 1, 4, KVShape(2, 16, 16)),
    (16, None, 64, 4, KVShape(2, 16, 16)),
    (1, 20, 64, 6, KVShape(2, 12, 20)),
    (256, None, 64, 3, KVShape(3, 16, 16)),
    (16, 33, 8, 5, KVShape(1, 24, 24)),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
"""Absolute tolerance by dtype. bf16 is not tested, because in tl.dot the Triton interpreter
multiplies bf16 as integers."""


def main(name: str) -> None:
    torch.set_num_threads(1)
    triton_backend.SPLIT_TOKENS_MIN = 64
    seen: set[int] = set()
    for dtype, tolerance in TOLERANCE.items():
        for page_size, window, programs, heads, shape in CASES:
            batch, pages = oracle.make_batch(BATCH_SHAPES[name], page_size)
            torch.manual_seed(0)
            like = torch.empty(0, dtype=dtype)
            pool = oracle.filled_pool(batch, pages, page_size, shape, like)
            total = sum(row.count for row in batch.rows)
            query = torch.randn(total, heads + 3, shape.key_dim).to(like)[:, :heads]
            step = step_inputs.build_inputs(batch, page_size, torch.device("cpu"))
            run = triton_backend.TritonBackend(programs).prepare(step, pool)
            found = run(0, query, 0.3, window)
            expected = oracle.reference_attention(batch, pool, query, 0.3, window)
            error = (found - expected).abs().max().item()
            splits = [launch.splits for plan in run.plans.values() for launch in plan]
            seen.update(splits)
            print(dtype, page_size, window, heads, shape, splits, error)
            assert found.shape == expected.shape
            assert found.dtype == dtype
            assert error < tolerance
    assert 1 in seen, "no launch without splits"
    assert max(seen) > 1, "no launch with splits"


if __name__ == "__main__":
    main(sys.argv[1])

"""Program run under TRITON_INTERPRET=1 (see test_paged_triton.py): compares the Triton kernels with
the reference on one set of rows, and exits with 1 if they differ."""

from __future__ import annotations

import sys

import torch

from continuo.engine.device import step_inputs
from continuo.engine.device.attention import triton_backend
from continuo.engine.device.model import AttentionParams, KVShape
from tests.support import attention_oracle as oracle

BATCH_SHAPES = {
    "decode": [(50, 1), (3, 1), (0, 1), (200, 1)],
    "appends": [(40, 7), (0, 9), (100, 3), (55, 20)],
    "mixed": [(10, 1), (0, 40), (130, 16), (12, 1)],
}
CASES = [  # page size, window, soft cap, sinks, number of programs, query heads, shape of KV
    (16, None, None, False, 1, 4, KVShape(2, 16, 16)),
    (16, None, None, True, 64, 4, KVShape(2, 16, 16)),
    (1, 20, None, False, 64, 6, KVShape(2, 12, 20)),
    (256, None, 2.0, False, 64, 3, KVShape(3, 16, 16)),
    (16, 33, 2.0, True, 8, 5, KVShape(1, 24, 24)),
    (64, 70, None, False, 64, 2, KVShape(1, 16, 16)),
    (24, None, None, False, 64, 2, KVShape(1, 16, 320)),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
"""Absolute tolerance by dtype. bf16 is not tested, because in tl.dot the Triton interpreter
multiplies bf16 as integers."""


def main(name: str) -> None:
    torch.set_num_threads(1)
    triton_backend.SPLIT_TOKENS_MIN = 64
    seen: set[bool] = set()
    for dtype, tolerance in TOLERANCE.items():
        for page_size, window, softcap, has_sinks, programs, heads, shape in CASES:
            batch, pages = oracle.make_batch(BATCH_SHAPES[name], page_size)
            torch.manual_seed(0)
            like = torch.empty(0, dtype=dtype)
            pool = oracle.filled_pool(batch, pages, page_size, shape, like)
            total = sum(row.count for row in batch.rows)
            query = torch.randn(total, heads + 3, shape.key_dim).to(like)[:, :heads]
            step = step_inputs.build_inputs(batch, page_size, torch.device("cpu"))
            run = triton_backend.TritonBackend(programs).prepare(step, pool)
            sinks = torch.randn(heads).to(like) if has_sinks else None
            params = AttentionParams(0.3, window, softcap, sinks)
            found = run(0, query, params)
            expected = oracle.reference_attention(batch, pool, query, params)
            error = (found - expected).abs().max().item()
            [plan] = run.plans.values()
            combined = len(plan.sums) // triton_backend.SUM_FIELDS
            seen.add(combined > 0)
            print(dtype, page_size, window, softcap, has_sinks, heads, shape, combined, error)
            assert found.shape == expected.shape
            assert found.dtype == dtype
            assert error < tolerance
    assert seen == {False, True}, "no case has tiles with several splits, or all have"


if __name__ == "__main__":
    main(sys.argv[1])

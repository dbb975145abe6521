"""Tests of the attention kernels under Triton's interpreter, against attention per token in fp64,
and of the plan of their launches."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from continuo.engine.device import step_inputs
from tests.support import attention_oracle as oracle
from tests.support.triton_interpreter import run_interpreted

pytestmark = [
    pytest.mark.process,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
]


@pytest.mark.parametrize("rows", ["decode", "appends", "mixed"])
def test_triton_kernels_equal_fp64_attention(rows: str) -> None:
    """Cases: one split and several, windows, page sizes, MHA and GQA, fp32 and fp16."""
    run_interpreted("tests.support.triton_cases", rows)


@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize(
    "rows",
    [
        [(199, 1)] * 63 + [(31_999, 1)],
        [(0, 1)],
        [(700, 700), (3, 1), (0, 2)],
        [(5000, 3), (4999, 1), (9000, 1)],
    ],
)
def test_plan_covers_each_context_once_in_splits_of_about_equal_length(
    rows: list[tuple[int, int]], window: int | None
) -> None:
    from continuo.engine.device.attention import triton_backend as kernels

    batch, _ = oracle.make_batch(rows, 16)
    step = step_inputs.build_inputs(batch, 16, torch.device("cpu"))
    group_size, kv_heads, programs = 4, 8, 528
    plan = kernels.plan(step, 0, window, group_size, kv_heads, kernels.BLOCK, programs)
    tables = np.cumsum([0, *map(len, step.page_tables[0])])
    covered: dict[int, list[int]] = {token: [] for token in range(int(step.row_offsets[-1]))}
    for tile_tokens, items in plan.items:
        if not len(items):
            continue
        lengths = items[:, 5] - items[:, 4]
        blocks = -(-lengths // kernels.BLOCK)
        share = -(-int(blocks.sum()) // (programs // kv_heads))
        assert blocks.max() <= max(share, kernels.SPLIT_TOKENS_MIN // kernels.BLOCK)
        assert (np.diff(lengths) <= 0).all(), "the longest splits begin first"
        for table, first, count, start, begin, end, cell, is_first in items.tolist():
            [row] = np.flatnonzero(step.row_offsets[:-1] <= first)[-1:]
            assert table == tables[row]
            assert start == step.starts[row] + first - step.row_offsets[row]
            assert 1 <= count <= tile_tokens
            assert begin % kernels.BLOCK == 0
            context = 0 if window is None else max(start - window + 1, 0)
            context = context // kernels.BLOCK * kernels.BLOCK
            assert is_first == (begin == context)
            assert (cell < 0) == (begin == context and end == start + count)
            for token in range(first, first + count):
                covered[token] += range(begin, end)
    for row, (start, count) in enumerate(rows):
        for n in range(count):
            seen = sorted(covered[int(step.row_offsets[row]) + n])
            assert seen == list(range(seen[0], seen[-1] + 1))
            assert seen[0] <= (0 if window is None else max(start + n - window + 1, 0))
            assert seen[-1] >= start + n
    cells = [
        first + n * stride for _, first, stride, splits in plan.sums.tolist() for n in range(splits)
    ]
    assert sorted(cells) == list(range(plan.cells))


def test_long_row_among_short_ones_is_split_and_they_are_not() -> None:
    """The number of splits was one for a whole launch: the long row was read in two parts."""
    from continuo.engine.device.attention import triton_backend as kernels

    batch, _ = oracle.make_batch([(199, 1)] * 63 + [(31_999, 1)], 16)
    step = step_inputs.build_inputs(batch, 16, torch.device("cpu"))
    plan = kernels.plan(step, 0, None, 4, 8, kernels.BLOCK, 528)
    (_, items), (_, of_longer_rows) = plan.items
    assert not len(of_longer_rows)
    splits = np.bincount(items[:, 1], minlength=64)
    assert splits[:63].tolist() == [1] * 63
    assert splits[63] > 32
    assert len(plan.sums) == 1


def test_first_launch_of_a_variant_measures_its_options_and_later_ones_do_not() -> None:
    from triton.runtime.errors import OutOfResources

    from continuo.engine.device.attention import triton_backend as kernels

    tried: list[kernels.LaunchOptions] = []
    launched: list[kernels.LaunchOptions] = []
    refused, fast = kernels.NARROW_OPTIONS[0], kernels.NARROW_OPTIONS[2]

    def launch(options: kernels.LaunchOptions) -> None:
        launched.append(options)
        if options == refused:
            raise OutOfResources(300, 200, "shared memory")

    def measure(run: kernels.Callable[[], None]) -> float:
        run()
        tried.append(launched[-1])
        return 1.0 if launched[-1] == fast else 2.0

    backend = kernels.TritonBackend(100, measure)
    variant = kernels.KernelVariant(16, 8, 2, 64, 64, 16, torch.float16, False, False, False)
    backend.launch(variant, launch)
    assert tried == [each for each in kernels.NARROW_OPTIONS if each != refused]
    launched.clear()
    backend.launch(variant, launch)
    assert launched == [fast]
    with pytest.raises(OutOfResources):
        kernels.TritonBackend(100, measure).launch(variant, lambda _: launch(refused))

"""Tests that the Triton kernels compile for a GPU, where there is none, and that all variants are
compiled before the first request."""

from __future__ import annotations

import importlib.util
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from continuo.engine.batch import Batch, SampleParams
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.warm_up import warm_up
from continuo.engine.sampling import Sampling

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
]


@pytest.fixture(scope="module")
def runner() -> Iterator[TorchRunner]:
    """A runner of a small decoder on the kernels, whose launches a test must record."""
    from continuo.bench import gpu_counts
    from continuo.engine.device.kernels import sampling_kernels
    from continuo.engine.device.kernels.layer_kernels import TritonOperations

    with gpu_counts.sampling_with(sampling_kernels), torch.inference_mode():
        yield gpu_counts.build_narrow_runner(1, TritonOperations())


def test_warm_up_compiles_every_variant_that_any_batch_launches(runner: TorchRunner) -> None:
    """Variants depend on the alignment of tensors and on integers that Triton specializes, too."""
    from continuo.bench import gpu_counts, random_decoder
    from continuo.bench.kernel_launches import LaunchRecorder

    with LaunchRecorder() as compiled:
        warm_up(runner, lambda what, fraction: None)
    assert {variant.name for variant in compiled.compilers} == {
        *("_add_norm", "_place_heads", "_attend", "_combine", "_gate", "_list", "_draw", "_mask")
    }
    source = random.Random(0)
    samples = [SampleParams(), gpu_counts.WARM, gpu_counts.LIMITED, gpu_counts.MASKED]
    samples.append(SampleParams(Sampling(temperature=0.5, logprobs=2), mask=gpu_counts.AllowAll()))
    with LaunchRecorder() as launched:
        for _ in range(30):
            lengths = [
                (source.choice([0, 3, 16, 700, 5000]), source.choice([1, 1, 2, 15, 16, 80]))
                for _ in range(source.choice([1, 2, 3, 16]))
            ]
            made = random_decoder.make_batch(lengths, SampleParams(), runner.geometry.pages)
            rows = [
                type(row)(row.ids, -1, row.start, row.pages, source.choice(samples))
                for row in made.rows
            ]
            runner.collect(runner.launch(Batch(0, rows)))
    assert launched.compilers.keys() <= compiled.compilers.keys()


def test_kernels_compile_for_a_gpu(
    runner: TorchRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's interpreter accepts code that its compiler does not."""
    from continuo.bench.kernel_launches import LaunchRecorder

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with LaunchRecorder() as recorder:
        warm_up(runner, lambda what, fraction: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Triton, about the default of one of its options
        for variant, compile_variant in recorder.compilers.items():
            assert "cubin" in compile_variant().asm, variant.name

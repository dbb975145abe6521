"""Work that the host does per step on a GPU: kernels launched, copies to and from the device,
tensors allocated, time. It is counted on a CPU, for a decoder with the layers and heads of a model
of eight billion parameters (32 layers, 32 query and 8 KV heads of 128) and a small width.

`plain` runs the operations of a layer and the sampling in torch, `fused` as on a GPU: in Triton.
Triton kernels are counted, not launched. Each operation of torch that is not a view counts as one
kernel, though some are several. `kernels_a_layer` are those of a layer. `host_us` is the median
time of a step without Triton's launcher and CUDA's, with the arithmetic of the small matrices;
`plan_us` is the part in which inputs and launches are planned.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from continuo.bench.kernel_launches import LaunchRecorder
from continuo.bench.random_decoder import NARROW, PAGE_SIZE, build_runner, make_batch
from continuo.bench.report import Report, ReportRow, median
from continuo.engine.batch import Batch, SampleParams, TokenMask
from continuo.engine.device import sampling, step_inputs
from continuo.engine.device.attention import triton_backend
from continuo.engine.device.attention.triton_backend import TritonBackend
from continuo.engine.device.kernels import sampling_kernels
from continuo.engine.device.kernels.layer_kernels import TritonOperations
from continuo.engine.device.models.operations import PLAIN, Operations
from continuo.engine.device.runner import TorchRunner
from continuo.engine.sampling import Sampling

PROGRAMS = 528
"""Kernel programs that saturate the device: four for each of 132 multiprocessors."""


class AllowAll(TokenMask):
    """A token mask that allows every id."""

    def compute_bitmask(self) -> bytes:
        return b"\xff" * (NARROW.vocab_size // 8)


GREEDY = SampleParams()
WARM = SampleParams(Sampling(temperature=0.8), uniform=0.4)
LIMITED = SampleParams(Sampling(temperature=0.8, top_p=0.9, top_k=40), uniform=0.4)
MASKED = SampleParams(mask=AllowAll())

STEPS: dict[str, tuple[list[tuple[int, int]], SampleParams]] = {
    "1 row": ([(1024, 1)], GREEDY),
    "64 rows": ([(1024, 1)] * 64, GREEDY),
    "64 rows, one of 32k": ([(200, 1)] * 63 + [(32_000, 1)], GREEDY),
    "63 rows, a prefill of 512": ([(1024, 1)] * 63 + [(0, 512)], GREEDY),
    "64 rows, temperature": ([(1024, 1)] * 64, WARM),
    "64 rows, top-k and top-p": ([(1024, 1)] * 64, LIMITED),
    "64 rows, a mask each": ([(1024, 1)] * 64, MASKED),
}
"""Rows of a step, as (tokens in KV, new tokens), and how their ids are drawn."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers", type=int, default=32, help="layers of the decoder (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="steps timed of each kind (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> Report:
    rows: list[ReportRow] = []
    for kind, operations, kernels in (
        ("plain", PLAIN, None),
        ("fused", TritonOperations(), sampling_kernels),
    ):
        with sampling_with(kernels), torch.inference_mode():
            runner = build_narrow_runner(options.layers, operations)
            shallow = build_narrow_runner(options.layers - 1, operations)
            for name, (lengths, sample) in STEPS.items():
                batch = make_batch(lengths, sample, runner.geometry.pages)
                counts = count_step(runner, batch)
                fewer = count_step(shallow, batch)
                rows.append(
                    {
                        "step": name,
                        "operations": kind,
                        **counts,
                        "kernels_a_layer": counts["kernels"] - fewer["kernels"],
                        "host_us": _time_step(runner, batch, options.steps),
                        "plan_us": _time_plan(runner, batch, options.steps),
                    }
                )
    notes = ["Counts per step. Nothing ran on a GPU."]
    return Report("Work of the host per step on a GPU", rows, notes=notes)


@contextmanager
def sampling_with(kernels: ModuleType | None) -> Iterator[None]:
    """Let the sampler choose these kernels on a CPU, too."""
    find_kernels = sampling.find_kernels
    sampling.find_kernels = lambda _: kernels
    try:
        yield
    finally:
        sampling.find_kernels = find_kernels


def build_narrow_runner(layers: int, operations: Operations) -> TorchRunner:
    widths = NARROW._replace(layers=layers)
    return build_runner(widths, operations, TritonBackend(PROGRAMS), torch.device("cpu"))


SINGLE_KERNELS = {torch.ops.aten.rms_norm.default}
"""Operations that a CPU composes of others, and a GPU runs in one kernel."""
ALLOCATIONS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
}
"""Operations that launch no kernel."""


class OperationCounter(TorchDispatchMode):
    """Counts the operations of torch that launch a kernel, and the tensors that are allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.allocations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in SINGLE_KERNELS:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        if func not in ALLOCATIONS:
            self.kernels[str(func)] += 1
        given = {_find_storage(each) for each in _tensors((args, kwargs))}
        self.allocations += sum(_find_storage(each) not in given for each in _tensors(out))
        return out


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _find_storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def count_step(runner: TorchRunner, batch: Batch) -> dict[str, int]:
    """Count what a step launches, copies and allocates."""
    uploads, downloads = step_inputs.upload.__code__, sampling.copy_to_host.__code__
    calls: Counter[CodeType] = Counter()

    def count_call(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    with LaunchRecorder() as launches, OperationCounter() as operations:
        sys.setprofile(count_call)
        try:
            ticket = runner.launch(batch)
        finally:
            sys.setprofile(None)
    runner.collect(ticket)
    fused = launches.counts.total()
    return {
        "kernels": operations.kernels.total() + fused,
        "of_triton": fused,
        "uploads": calls[uploads],
        "downloads": calls[downloads],
        "allocations": operations.allocations,
    }


def _time_step(runner: TorchRunner, batch: Batch, steps: int) -> float:
    """Return the median time of a step in microseconds."""
    launch = JITFunction.run
    JITFunction.run = _launch_nothing
    try:
        spent: list[float] = []
        for _ in range(steps):
            start_s = time.perf_counter()
            runner.collect(runner.launch(batch))
            spent.append(time.perf_counter() - start_s)
    finally:
        JITFunction.run = launch
    return median(spent) * 1e6


def _time_plan(runner: TorchRunner, batch: Batch, steps: int) -> float:
    """Return the median time in which the inputs of a step and the plan of its attention are made,
    in microseconds."""
    spent: list[float] = []
    for _ in range(steps):
        start_s = time.perf_counter()
        step = step_inputs.build_inputs(batch, PAGE_SIZE, runner.device, NARROW.vocab_size)
        triton_backend.plan(step, 0, None, 4, 8, triton_backend.BLOCK, PROGRAMS)
        spent.append(time.perf_counter() - start_s)
    return median(spent) * 1e6


def _launch_nothing(*_: Any, **__: Any) -> None:
    pass

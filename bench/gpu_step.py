"""Steps of a decoder of eight billion parameters (the shape of Llama 3 8B, random weights, bf16) on
a GPU: decode of 1 to 256 rows, appends to a long context, prefill.

`ms` is the wall clock of a step, when each is launched while the one before it runs, as the engine
does; `launch_ms` is the host's part of it: inputs, plan and launches. `unreplayed_ms` is the wall
clock without CUDA graphs. `floor_ms` is the time in which the device moves as many bytes as the
step must read, weights and KV, at the rate at which it copies, and `floor` that time in percent of
`ms`. On a CPU, with --layers and --narrow, the same code runs to be tested.
"""

import argparse
import math
import time
from collections import deque
from typing import NamedTuple

import torch

from continuo.bench.random_decoder import (
    EIGHT_BILLION,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    NARROW,
    PAGE_SIZE,
    Widths,
    build_runner,
    make_batch,
)
from continuo.bench.report import Report, ReportRow, median
from continuo.engine.batch import Batch, SampleParams
from continuo.engine.device.build import capture_graphs, choose_backend, choose_operations
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.warm_up import warm_up
from continuo.engine.sampling import Sampling

GREEDY = SampleParams()
SAMPLED = SampleParams(Sampling(temperature=0.8, top_p=0.95, top_k=50), uniform=0.4)
UNLIMITED = SampleParams(Sampling(temperature=0.8), uniform=0.4)
COPIED_BYTES = 4 << 30
COPIES = 10
KV_VALUE_BYTES = 2


class Step(NamedTuple):
    """Rows of a step, as (tokens in KV, new tokens), and how their ids are drawn."""

    name: str
    lengths: list[tuple[int, int]]
    sample: SampleParams = GREEDY


STEPS = [
    *(Step(f"decode, {rows} x 1,024", [(1024, 1)] * rows) for rows in (1, 4, 16, 64, 256)),
    *(Step(f"decode, {rows} x 1,024, sampled", [(1024, 1)] * rows, SAMPLED) for rows in (1, 64)),
    Step("decode, 64 x 1,024, no limits", [(1024, 1)] * 64, UNLIMITED),
    Step("decode, 1 x 32,000", [(32_000, 1)]),
    Step("decode, 63 x 200 and 1 x 32,000", [(200, 1)] * 63 + [(32_000, 1)]),
    *(Step(f"append of 16 to {start:,}", [(start, 16)]) for start in (2048, 8192, 32_000)),
    Step("decode, 63 x 1,024, and prefill of 512", [(1024, 1)] * 63 + [(0, 512)]),
    Step("prefill of 8,192", [(0, 8192)]),
]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers",
        type=int,
        default=EIGHT_BILLION.layers,
        help="layers of the decoder (default: %(default)s)",
    )
    parser.add_argument(
        "--narrow", action="store_true", help="a decoder of a few kilobytes, to test this on a CPU"
    )
    parser.add_argument(
        "--steps", type=int, default=30, help="steps of a round (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds, medians of which count (default: %(default)s)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="steps whose names contain TEXT (default: all)"
    )


def run(options: argparse.Namespace) -> Report:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    widths = (NARROW if options.narrow else EIGHT_BILLION)._replace(layers=options.layers)
    steps = [step for step in STEPS if options.only in step.name]
    pages = max(_count_pages(step) for step in steps)
    bandwidths = [_measure_copies(device)]
    with torch.inference_mode():
        runner = build_runner(
            widths, choose_operations(device), choose_backend(device), device, pages
        )
        warm_up_start_s = time.perf_counter()
        warm_up(runner, lambda *_: None)
        warm_up_s = time.perf_counter() - warm_up_start_s
        unreplayed = [_measure(runner, step, options) for step in steps]
        capture_start_s = time.perf_counter()
        runner.graphs = capture_graphs(runner, lambda *_: None)
        capture_s = time.perf_counter() - capture_start_s
        times = [_measure(runner, step, options) for step in steps]
    bandwidths.append(_measure_copies(device))
    rows = [
        _describe(*each, widths, max(bandwidths))
        for each in zip(steps, times, unreplayed, strict=True)
    ]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    return Report(
        f"Steps of a decoder of {widths.layers} layers, {widths.hidden} wide, on {name}",
        rows,
        notes=[
            "Copies within the device before and after: "
            f"{', '.join(f'{each / 1e9:,.0f}' for each in bandwidths)} GB/s, read and written.",
            f"Kernels compiled and measured in {warm_up_s:.1f} s, but for those cached on disk; "
            f"graphs captured in {capture_s:.1f} s.",
        ],
        facts={
            "copied_bytes_per_s": bandwidths,
            "warm_up_s": warm_up_s,
            "capture_s": capture_s,
        },
    )


class Times(NamedTuple):
    step_s: float
    launch_s: float


def _measure(runner: TorchRunner, step: Step, options: argparse.Namespace) -> Times:
    """Measure steps in rounds, after one that is not counted."""
    batch = make_batch(step.lengths, step.sample, runner.geometry.pages)
    rounds = [_run_round(runner, batch, options.steps) for _ in range(1 + options.rounds)][1:]
    return Times(
        median([each.step_s for each in rounds]), median([each.launch_s for each in rounds])
    )


def _run_round(runner: TorchRunner, batch: Batch, steps: int) -> Times:
    """Run steps, each of which is launched before the one before it is collected."""
    launch_s: list[float] = []
    running = deque([runner.launch(batch)])
    start_s = time.perf_counter()
    for _ in range(steps):
        launch_start_s = time.perf_counter()
        running.append(runner.launch(batch))
        launch_s.append(time.perf_counter() - launch_start_s)
        runner.collect(running.popleft())
    step_s = (time.perf_counter() - start_s) / steps
    runner.collect(running.popleft())
    return Times(step_s, median(launch_s))


def _describe(
    step: Step, times: Times, unreplayed: Times, widths: Widths, bandwidth: float
) -> ReportRow:
    floor_s = _count_bytes(step, widths) / bandwidth
    tokens = sum(count for _, count in step.lengths)
    return {
        "step": step.name,
        "ms": times.step_s * 1000,
        "launch_ms": times.launch_s * 1000,
        "unreplayed_ms": unreplayed.step_s * 1000,
        "floor_ms": floor_s * 1000,
        "floor": 100 * floor_s / times.step_s,
        "tokens_per_s": tokens / times.step_s,
    }


def _count_bytes(step: Step, widths: Widths) -> int:
    """Count the bytes that a step must read: the weights but for the embeddings, and the KV of its
    rows."""
    heads = widths.hidden * HEAD_DIM * 2 * (HEADS + KV_HEADS)
    layer = heads + 3 * widths.hidden * widths.intermediate
    weights = widths.layers * layer + widths.hidden * widths.vocab_size
    kv = (
        widths.layers
        * 2
        * KV_HEADS
        * HEAD_DIM
        * sum(start + count for start, count in step.lengths)
    )
    return (weights + kv) * KV_VALUE_BYTES


def _count_pages(step: Step) -> int:
    return sum(math.ceil((start + count) / PAGE_SIZE) for start, count in step.lengths)


def _measure_copies(device: torch.device) -> float:
    """Return the bytes per second that the device reads and writes when it copies."""
    size = COPIED_BYTES if device.type == "cuda" else COPIED_BYTES >> 6
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    seconds: list[float] = []
    for _ in range(COPIES):
        _finish(device)
        start_s = time.perf_counter()
        target.copy_(source)
        _finish(device)
        seconds.append(time.perf_counter() - start_s)
    return 2 * size / min(seconds)


def _finish(device: torch.device) -> None:
    """Wait for what has been launched on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

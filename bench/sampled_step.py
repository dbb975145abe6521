"""The cost of sampling per step on a CPU: decode steps whose ids are drawn at random, with
penalties or under a mask, beside greedy ones.

The models have random weights. The distribution of a row is flat (all ids are about as likely) or
peaked (some dozens of ids hold most of the mass). As in the engine, a step is launched while the
decoder's threads still compute the end of the one before. The kinds of rows take turns in rounds.
`ms` is the median over the rounds; `ratio` is the median over the rounds of the time of a step,
divided by that of a greedy one in the same round.
"""

import argparse
import tempfile
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors.torch import load_file, save_file

from continuo.bench import random_checkpoints
from continuo.bench.random_checkpoints import MODEL_SIZES
from continuo.bench.report import Report, ReportRow, median
from continuo.engine.batch import (
    Batch,
    BatchRow,
    PenalizedIds,
    SampleParams,
    TokenCounts,
    TokenMask,
)
from continuo.engine.config import EngineConfig
from continuo.engine.device.build import build_runner
from continuo.engine.device.runner import TorchRunner
from continuo.engine.sampling import Sampling

SIZES = ("S:32000:64", "M:151936:4")
"""Model, vocabulary and rows."""
LOGIT_STDDEV = {"flat": 0.01, "peaked": 4.0}
PAGE_SIZE, CONTEXT = 16, 256
PROMPT = 64
"""Distinct ids that the repetition penalty applies to, at least."""
PLAIN = Sampling(temperature=0.8, top_p=0.95)
PENALIZED = Sampling(
    temperature=0.8, top_p=0.95, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1
)
CHAT = Sampling(temperature=0.8, top_p=0.95, top_k=50)
RATIO_MAX = 1.1
"""Target: a sampled step takes at most that multiple of a greedy one."""
KINDS = {
    "greedy": Sampling(),
    "temperature": Sampling(temperature=0.8),
    "top-p": PLAIN,
    "top-k": Sampling(temperature=0.8, top_k=50),
    "min-p": Sampling(temperature=0.8, min_p=0.05),
    "top-p, penalties": PENALIZED,
    "top-p, mask": PLAIN,
    "chat": CHAT,
    "chat, penalties": msgspec.structs.replace(PENALIZED, top_k=50),
    "chat, mask": CHAT,
    "greedy, mask": Sampling(),
    "top-p, log-probabilities": Sampling(temperature=0.8, top_p=0.95, logprobs=5),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of a round (default: %(default)s)"
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=SIZES,
        metavar="MODEL:IDS:ROWS",
        help=f"model, vocabulary and rows of each measurement (default: {' '.join(SIZES)})",
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=None, help="threads of a step (default: as the engine)"
    )


def run(options: argparse.Namespace) -> Report:
    rows: list[ReportRow] = []
    for size in options.sizes:
        name, vocab, row_count = size.split(":")[0], *map(int, size.split(":")[1:])
        for logits, stddev in LOGIT_STDDEV.items():
            with tempfile.TemporaryDirectory() as folder:
                _save_model(MODEL_SIZES[name], vocab, stddev, Path(folder))
                runner = _build_runner(Path(folder), row_count, options.threads)
            label = {"model": name, "ids": vocab, "rows": row_count, "logits": logits}
            rows += [{**label, **row} for row in _measure(runner, row_count, options)]
    notes = [
        "Milliseconds a step. temperature 0.8, top_p 0.95, top_k 50, min_p 0.05; chat: the first "
        "three together."
    ]
    return Report("Sampled steps", rows, notes=notes)


def _save_model(shape: Mapping[str, Any], vocab: int, logit_stddev: float, path: Path) -> None:
    random_checkpoints.save_checkpoint({**shape, "vocab_size": vocab}, path)
    file = path / "model.safetensors"
    tensors = load_file(file)
    head = torch.randn(vocab, shape["hidden_size"], generator=torch.Generator().manual_seed(1))
    tensors["lm_head.weight"] = (head * logit_stddev / shape["hidden_size"] ** 0.5).bfloat16()
    save_file(tensors, file, {"format": "pt"})


def _build_runner(folder: Path, row_count: int, threads: int | None) -> TorchRunner:
    config = EngineConfig(
        model=str(folder),
        device="cpu",
        dtype="bfloat16",
        threads=threads,
        block_size=PAGE_SIZE,
        num_gpu_blocks_override=row_count * CONTEXT // PAGE_SIZE,
        max_model_len=CONTEXT,
    )
    return build_runner(config, lambda *_: None)[0]


class _Row(NamedTuple):
    """A sequence, which begins anew in each round."""

    log: "array[int]"
    pages: "array[int]"


class _EveryOtherIdMask(TokenMask):
    def __init__(self, vocab: int) -> None:
        self._bits = b"\x55" * (vocab // 8 + 1)

    def compute_bitmask(self) -> bytes:
        return self._bits


def _measure(runner: TorchRunner, row_count: int, options: argparse.Namespace) -> list[ReportRow]:
    rounds: list[dict[str, float]] = []
    for number in range(1 + options.rounds):  # the first warms up
        times = {kind: _time_step(runner, row_count, kind, options.steps) for kind in KINDS}
        rounds += [times] * (number > 0)
    return [
        {
            "drawn": kind,
            "ms": median([times[kind] for times in rounds]) * 1000,
            "ratio": (ratio := median([times[kind] / times["greedy"] for times in rounds])),
            f"within {RATIO_MAX}": "yes" if ratio <= RATIO_MAX else "no",
        }
        for kind in KINDS
    ]


def _time_step(runner: TorchRunner, row_count: int, kind: str, steps: int) -> float:
    """Return the seconds per step of a round of `steps` steps."""
    pages = CONTEXT // PAGE_SIZE
    rows = [
        _Row(
            array("i", ((row * 31 + n) * 7 % runner.geometry.vocab_size for n in range(PROMPT))),
            array("i", range(row * pages, (row + 1) * pages)),
        )
        for row in range(row_count)
    ]
    samples = [_make_sample(kind, row, runner.geometry.vocab_size, n) for n, row in enumerate(rows)]
    prompt = [
        BatchRow(row.log[:], -1, 0, row.pages, sample)
        for row, sample in zip(rows, samples, strict=True)
    ]
    pending = runner.launch(Batch(0, prompt))
    _collect(runner, pending, rows, samples)
    batch = [
        BatchRow(row.log[-1:], -1, PROMPT, row.pages, sample)
        for row, sample in zip(rows, samples, strict=True)
    ]
    start_s = time.perf_counter()
    pending = runner.launch(Batch(1, batch))
    for step in range(1, steps):
        is_near_end = runner.run_until_near_end(pending)
        if not is_near_end:
            _collect(runner, pending, rows, samples)
        fed = [
            BatchRow(
                array("i") if is_near_end else row.log[-1:],
                index if is_near_end else -1,
                PROMPT + step,
                row.pages,
                sample,
            )
            for index, (row, sample) in enumerate(zip(rows, samples, strict=True))
        ]
        launched = runner.launch(Batch(step + 1, fed))
        if is_near_end:
            _collect(runner, pending, rows, samples)
        pending = launched
    _collect(runner, pending, rows, samples)
    return (time.perf_counter() - start_s) / steps


def _make_sample(kind: str, row: _Row, vocab: int, number: int) -> SampleParams:
    penalized = None
    if "penalties" in kind:
        penalized = PenalizedIds(TokenCounts(row.log), TokenCounts(row.log, PROMPT))
    mask = _EveryOtherIdMask(vocab) if "mask" in kind else None
    return SampleParams(KINDS[kind], number * 0.618 % 1, penalized, mask)


def _collect(
    runner: TorchRunner, pending: Any, rows: list[_Row], samples: list[SampleParams]
) -> None:
    for row, sample, drawn in zip(rows, samples, runner.collect(pending).results, strict=True):
        assert drawn is not None
        assert drawn.failure is None
        row.log.append(drawn.id)
        if sample.penalized is not None:
            sample.penalized.seen.update()
            sample.penalized.output.update()

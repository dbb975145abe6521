"""Tests of the torch runner: fed tokens, steps ahead, page moves, and rows that fail alone."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.batch import Batch, BatchRow, PageMove, RowResult, SampleParams
from continuo.engine.device.runner import PendingStep, TorchRunner
from continuo.engine.errors import ModelError
from continuo.engine.sampling import Sampling
from tests.support import transformers_oracle as oracle

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    oracle.FAMILIES["qwen3"]().save_pretrained(folder)
    return folder


@pytest.fixture
def runner(folder: Path) -> TorchRunner:
    return oracle.build_cpu_runner(folder, num_gpu_blocks_override=64, steps_ahead=1)


def row(
    ids: list[int], start: int, pages: list[int], sample: SampleParams | None = None
) -> BatchRow:
    return BatchRow(array("i", ids), -1, start, array("i", pages), sample or SampleParams())


def fed_row(
    feed: int, start: int, pages: list[int], sample: SampleParams | None = None
) -> BatchRow:
    return BatchRow(array("i"), feed, start, array("i", pages), sample or SampleParams())


def run_step(
    runner: TorchRunner, *rows: BatchRow, moves: list[PageMove] | None = None
) -> list[int | None]:
    result = runner.collect(runner.launch(Batch(0, list(rows), moves or [])))
    return [drawn and drawn.id for drawn in result.results]


def test_geometry_follows_the_config(runner: TorchRunner) -> None:
    geometry = runner.geometry
    assert (geometry.pages, geometry.page_size, geometry.steps_ahead) == (64, 16, 1)
    assert (geometry.max_model_len, geometry.vocab_size) == (512, oracle.VOCAB_SIZE)
    assert geometry.batched_tokens == 512


def test_rows_fed_on_the_device_draw_the_same_ids_as_rows_fed_by_host(runner: TorchRunner) -> None:
    """Steps are launched one ahead of collect, and rows change places from step to step."""
    starts = oracle.random_prompts(1, [20, 5])
    samples = [
        SampleParams(Sampling(temperature=1.0), uniform=0.1 + 0.07 * step) for step in range(9)
    ]
    by_host: list[list[int | None]] = [[], []]
    for ids, pages, out in zip(starts, ([0, 1], [2]), by_host, strict=True):
        log = list(ids)
        out += run_step(runner, row(log, 0, pages, samples[0]))
        for sample in samples[1:]:
            log.append(out[-1] or 0)
            out += run_step(runner, row(log[-1:], len(log) - 1, pages, sample))

    pages = [[3, 4], [5]]
    positions_by_step = [[0, 1]]  # per step: the rows of the two sequences
    first = [row(ids, 0, held, samples[0]) for ids, held in zip(starts, pages, strict=True)]
    pending_steps = [runner.launch(Batch(0, first))]
    for step in range(1, 9):
        rows = [
            fed_row(positions_by_step[-1][n], len(starts[n]) + step - 1, pages[n], samples[step])
            for n in (0, 1)
        ]
        mixed = step % 3 == 0
        swapped = step % 2 == 0
        extra = [BatchRow(array("i", [1, 2, 3]), -1, 0, array("i", [6]), None)] if mixed else []
        positions_by_step.append([mixed + swapped, mixed + (not swapped)])
        pending_steps.append(runner.launch(Batch(step, extra + (rows[::-1] if swapped else rows))))
    by_device: list[list[int | None]] = [[], []]
    for pending, positions in zip(pending_steps, positions_by_step, strict=True):
        drawn = runner.collect(pending).results
        for out, position in zip(by_device, positions, strict=True):
            result = drawn[position]
            out.append(result and result.id)
    assert by_device == by_host
    assert len(set(by_host[0])) > 3


def test_only_rows_that_sample_have_results(runner: TorchRunner) -> None:
    silent = BatchRow(array("i", [4, 5]), -1, 0, array("i", [1]), None)
    result = runner.collect(runner.launch(Batch(0, [silent, row([4, 5], 0, [2]), silent])))
    assert [drawn is None for drawn in result.results] == [True, False, True]
    assert result.model_s > 0
    alone = runner.collect(runner.launch(Batch(1, [silent])))
    assert alone.results == [None]


@pytest.mark.parametrize("kind", ["torch", "C"])
def test_row_with_drafts_draws_the_ids_of_rows_without(
    runner: TorchRunner, tmp_path: Path, kind: str
) -> None:
    """The draws up to the first wrong draft are those of single steps, log-probabilities included;
    other rows of the step are not affected."""
    if kind == "C":
        oracle.small_model("Qwen3", **oracle.NATIVE_SIZES).save_pretrained(tmp_path)
        runner = oracle.build_cpu_runner(tmp_path, num_gpu_blocks_override=64)
    prompt, other = oracle.random_prompts(8, [20, 9])
    sampling = Sampling(temperature=1.0, logprobs=2)
    samples = [SampleParams(sampling, uniform=0.05 + 0.11 * step) for step in range(8)]
    drawn: list[RowResult] = []
    log = list(prompt)
    for sample in samples:
        start = len(prompt) * bool(drawn) + max(len(drawn) - 1, 0)
        [result] = runner.collect(
            runner.launch(Batch(0, [row(log[start:], start, [0, 1], sample)]))
        ).results
        assert result is not None
        drawn.append(result)
        log.append(result.id)
    [expected_other] = run_step(runner, row(other, 0, [2]))

    wrong = (drawn[5].id + 1) % runner.geometry.vocab_size
    ids = [*prompt, *(each.id for each in drawn[:5]), wrong, drawn[6].id]
    drafted = BatchRow(
        array("i", ids),
        -1,
        0,
        array("i", [3, 4]),
        samples[0],
        draft_samples=tuple(samples[1:]),
    )
    beside = row(other, 0, [5])
    silent = BatchRow(array("i", [4, 5]), -1, 0, array("i", [6]), None)
    first, second, third = runner.collect(
        runner.launch(Batch(1, [silent, drafted, beside]))
    ).results
    assert first is None
    assert second is not None
    assert third is not None
    assert third.id == expected_other
    assert third.after_drafts == ()
    verified = [second, *second.after_drafts]
    assert len(verified) == 8
    assert [each.id for each in verified[:6]] == [each.id for each in drawn[:6]]
    for found, single in zip(verified[:6], drawn, strict=False):
        assert found.logprobs is not None
        assert single.logprobs is not None
        assert found.logprobs.drawn == pytest.approx(single.logprobs.drawn, abs=1e-4)
        assert [id for id, _ in found.logprobs.top] == [id for id, _ in single.logprobs.top]
    greedy = BatchRow(
        array("i", [*prompt, 1, 2]),
        -1,
        0,
        array("i", [7, 8]),
        SampleParams(),
        draft_samples=(SampleParams(), SampleParams()),
    )
    [result] = runner.collect(runner.launch(Batch(2, [greedy]))).results
    assert result is not None
    stepwise = [
        run_step(runner, row([*prompt, 1, 2][:end], 0, [9, 10]))[0] for end in range(20, 23)
    ]
    assert [result.id, *(each.id for each in result.after_drafts)] == stepwise


def test_copied_page_contains_its_tokens(runner: TorchRunner) -> None:
    [ids] = oracle.random_prompts(4, [24])
    run_step(runner, row(ids[:20], 0, [7, 8]))
    expected = run_step(runner, row(ids[20:], 20, [7, 8]))
    run_step(runner, row(ids[:20], 0, [7, 8]))
    moves = [PageMove("copy", 8, 9), PageMove("copy", 9, 10), PageMove("copy", 7, 9)]
    assert run_step(runner, row(ids[20:], 20, [9, 10]), moves=moves) == expected


def test_nan_fails_only_its_own_row_and_does_not_spread(runner: TorchRunner) -> None:
    """NaN in the KV of one sequence affects no other row, not even a later owner of its pages."""
    [ids] = oracle.random_prompts(5, [20])
    clean = run_step(runner, row(ids, 0, [20, 21]), row(ids[:3], 0, [22]), row(ids[:9], 0, [23]))
    with torch.inference_mode():
        for layer in runner.pool.keys + runner.pool.values:
            layer[[10, 11]] = math.nan
    batch = Batch(0, [row([5], 16, [10, 11]), row(ids, 0, [20, 21]), row([ids[2]], 2, [22])])
    broken, *sound = runner.collect(runner.launch(batch)).results
    assert broken is not None
    assert broken.failure is not None
    assert [drawn and (drawn.id, drawn.failure) for drawn in sound] == [
        (clean[0], None),
        (clean[1], None),
    ]
    reused = run_step(runner, row(ids[:3], 0, [10]), row(ids[:9], 0, [11]))
    assert reused == clean[1:]
    reread = run_step(runner, row([ids[2]], 2, [10]), row([ids[8]], 8, [11]), row([1], 0, [12]))
    assert reread[:2] == clean[1:]


def test_logprobs_are_returned_only_for_the_row_that_requests_them(runner: TorchRunner) -> None:
    sample = SampleParams(Sampling(logprobs=3))
    batch = Batch(0, [row([4, 5], 0, [1]), row([4, 5], 0, [2], sample)])
    without, with_logprobs = runner.collect(runner.launch(batch)).results
    assert without is not None
    assert without.logprobs is None
    assert with_logprobs is not None
    assert with_logprobs.logprobs is not None
    assert with_logprobs.logprobs.top[0][0] == with_logprobs.id == without.id
    assert with_logprobs.logprobs.drawn == pytest.approx(with_logprobs.logprobs.top[0][1])


def test_inference_builds_no_autograd_graph(runner: TorchRunner) -> None:
    pending = runner.launch(Batch(0, [row([4, 5], 0, [1])]))
    assert isinstance(pending, PendingStep)
    assert pending.output is not None
    assert not pending.output.ids.requires_grad
    assert pending.output.ids.device == torch.device("cpu")


def test_small_steps_use_one_thread_and_large_steps_use_all(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    runner.threads, runner.parameter_count = 7, 10_000_000
    run_step(runner, row([1], 0, [1]))
    run_step(runner, row([1] * 64, 0, [1, 2, 3, 4]))
    assert used == [1, 7]


@pytest.mark.parametrize(
    "limit",
    [
        {"block_size": 0},
        {"max_num_batched_tokens": 0},
        {"max_model_len": -1},
        {"threads": 0},
        {"steps_ahead": 2},
    ],
)
def test_invalid_limit_is_named_in_the_error(folder: Path, limit: dict[str, Any]) -> None:
    [name] = limit
    with pytest.raises(ModelError, match=name):
        oracle.build_cpu_runner(folder, **limit)

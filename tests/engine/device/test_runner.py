"""The runner itself: feeding on the device, one step ahead, page moves, rows that fail alone."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.batch import Batch, BatchRow, PageMove, SampleParams
from continuo.engine.device.runner import PendingStep, TorchRunner
from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    oracle.FAMILIES["qwen3"]().save_pretrained(folder)
    return folder


@pytest.fixture
def runner(folder: Path) -> TorchRunner:
    return oracle.runner_of(folder, num_gpu_blocks_override=64, steps_ahead=1)


def row(
    ids: list[int], start: int, pages: list[int], sample: SampleParams | None = None
) -> BatchRow:
    return BatchRow(array("i", ids), -1, start, array("i", pages), sample or SampleParams())


def fed(feed: int, start: int, pages: list[int], sample: SampleParams | None = None) -> BatchRow:
    return BatchRow(array("i"), feed, start, array("i", pages), sample or SampleParams())


def one(
    runner: TorchRunner, *rows: BatchRow, moves: list[PageMove] | None = None
) -> list[int | None]:
    answer = runner.collect(runner.launch(Batch(0, list(rows), moves or [])))
    return [drawn and drawn.id for drawn in answer.results]


def test_geometry_follows_the_config(runner: TorchRunner) -> None:
    geometry = runner.geometry
    assert (geometry.pages, geometry.page_size, geometry.steps_ahead) == (64, 16, 1)
    assert (geometry.max_model_len, geometry.vocab_size) == (512, oracle.VOCAB)
    assert geometry.batched_tokens == 512


def test_rows_fed_on_the_device_say_what_rows_fed_by_the_host_say(runner: TorchRunner) -> None:
    """Launched one step ahead of collecting, rows changing their places from step to step."""
    starts = oracle.prompts(1, [20, 5])
    wishes = [SampleParams(temperature=1.0, uniform=0.1 + 0.07 * step) for step in range(9)]
    by_host: list[list[int | None]] = [[], []]
    for ids, pages, out in zip(starts, ([0, 1], [2]), by_host, strict=True):
        log = list(ids)
        out += one(runner, row(log, 0, pages, wishes[0]))
        for wish in wishes[1:]:
            log.append(out[-1] or 0)
            out += one(runner, row(log[-1:], len(log) - 1, pages, wish))

    pages = [[3, 4], [5]]
    places = [[0, 1]]  # per step: the rows of the two sequences
    first = [row(ids, 0, held, wishes[0]) for ids, held in zip(starts, pages, strict=True)]
    tickets = [runner.launch(Batch(0, first))]
    for step in range(1, 9):
        rows = [
            fed(places[-1][n], len(starts[n]) + step - 1, pages[n], wishes[step]) for n in (0, 1)
        ]
        mixed = step % 3 == 0
        swapped = step % 2 == 0
        extra = [BatchRow(array("i", [1, 2, 3]), -1, 0, array("i", [6]), None)] if mixed else []
        places.append([mixed + swapped, mixed + (not swapped)])
        tickets.append(runner.launch(Batch(step, extra + (rows[::-1] if swapped else rows))))
    by_device: list[list[int | None]] = [[], []]
    for ticket, where in zip(tickets, places, strict=True):
        drawn = runner.collect(ticket).results
        for out, place in zip(by_device, where, strict=True):
            answer = drawn[place]
            out.append(answer and answer.id)
    assert by_device == by_host
    assert len(set(by_host[0])) > 3


def test_only_rows_that_sample_are_answered(runner: TorchRunner) -> None:
    quiet = BatchRow(array("i", [4, 5]), -1, 0, array("i", [1]), None)
    answer = runner.collect(runner.launch(Batch(0, [quiet, row([4, 5], 0, [2]), quiet])))
    assert [drawn is None for drawn in answer.results] == [True, False, True]
    assert answer.model_s > 0
    alone = runner.collect(runner.launch(Batch(1, [quiet])))
    assert alone.results == [None]


def test_a_copied_page_carries_its_tokens(runner: TorchRunner) -> None:
    [ids] = oracle.prompts(4, [24])
    one(runner, row(ids[:20], 0, [7, 8]))
    expected = one(runner, row(ids[20:], 20, [7, 8]))
    one(runner, row(ids[:20], 0, [7, 8]))
    moves = [PageMove("copy", 8, 9), PageMove("copy", 9, 10), PageMove("copy", 7, 9)]
    assert one(runner, row(ids[20:], 20, [9, 10]), moves=moves) == expected


def test_nan_fails_its_row_alone_and_leaves_nothing_behind(runner: TorchRunner) -> None:
    """NaN in one sequence's KV reaches no other row, not even one that gets its pages later."""
    [ids] = oracle.prompts(5, [20])
    clean = one(runner, row(ids, 0, [20, 21]), row(ids[:3], 0, [22]), row(ids[:9], 0, [23]))
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
    reused = one(runner, row(ids[:3], 0, [10]), row(ids[:9], 0, [11]))
    assert reused == clean[1:]
    again = one(runner, row([ids[2]], 2, [10]), row([ids[8]], 8, [11]), row([1], 0, [12]))
    assert again[:2] == clean[1:]


def test_logprobs_come_with_the_row_that_asked(runner: TorchRunner) -> None:
    wish = SampleParams(logprobs=3)
    batch = Batch(0, [row([4, 5], 0, [1]), row([4, 5], 0, [2], wish)])
    without, with_logprobs = runner.collect(runner.launch(batch)).results
    assert without is not None
    assert without.logprobs is None
    assert with_logprobs is not None
    assert with_logprobs.logprobs is not None
    assert with_logprobs.logprobs.top[0][0] == with_logprobs.id == without.id
    assert with_logprobs.logprobs.drawn == pytest.approx(with_logprobs.logprobs.top[0][1])


def test_inference_leaves_no_graph(runner: TorchRunner) -> None:
    ticket = runner.launch(Batch(0, [row([4, 5], 0, [1])]))
    assert isinstance(ticket, PendingStep)
    assert ticket.output is not None
    assert not ticket.output.ids.requires_grad
    assert ticket.output.ids.device == torch.device("cpu")


def test_light_steps_run_on_one_thread_and_heavy_ones_on_all(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    runner.threads, runner.parameter_count = 7, 10_000_000
    one(runner, row([1], 0, [1]))
    one(runner, row([1] * 64, 0, [1, 2, 3, 4]))
    assert used == [1, 7]


@pytest.mark.parametrize(
    "bound",
    [
        {"block_size": 0},
        {"max_num_batched_tokens": 0},
        {"max_model_len": -1},
        {"threads": 0},
        {"steps_ahead": 2},
    ],
)
def test_absurd_bounds_are_named(folder: Path, bound: dict[str, Any]) -> None:
    [name] = bound
    with pytest.raises(ModelError, match=name):
        oracle.runner_of(folder, **bound)

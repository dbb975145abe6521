"""Our own C: what it reads, what it does not, and what happens without a compiler. That it computes
what transformers does is shown for every family in tests/parity."""

from __future__ import annotations

import math
import shutil
from array import array
from pathlib import Path

import pytest
import torch

from engine.batch import Batch, Row, Sample
from engine.device.native import build
from engine.device.native.runner import NativeRunner
from engine.device.runner import TorchRunner
from tests.parity import oracle

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler (cc) is installed"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    oracle.FAMILIES["qwen3"](**oracle.SIXTEENS).save_pretrained(folder)
    return folder


def logits(runner: TorchRunner, ids: list[int], cuts: list[int]) -> torch.Tensor:
    return oracle.logits_in_chunks(runner, ids, cuts)


@needs_compiler
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_what_belongs_to_nobody_is_never_read(folder: Path, page_size: int) -> None:
    [ids] = oracle.prompts(1, [150])
    clean, dirty = (
        oracle.runner_of(folder, block_size=page_size, kv_cache_memory_bytes=8 << 20)
        for _ in range(2)
    )
    with torch.inference_mode():
        for pool in dirty.pool.keys + dirty.pool.values:
            pool.fill_(math.nan)
    cuts = [1, 2, 66, 67, 100]
    assert torch.equal(logits(clean, ids, cuts), logits(dirty, ids, cuts))


@needs_compiler
def test_threads_change_nothing(folder: Path) -> None:
    [ids] = oracle.prompts(2, [200])
    one, two = (oracle.runner_of(folder, threads=threads) for threads in (1, 2))
    assert torch.equal(logits(one, ids, [64, 65]), logits(two, ids, [64, 65]))


@needs_compiler
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_whose_logits_are_not_finite_fails_alone(folder: Path, bad: float) -> None:
    runner = oracle.runner_of(folder)
    assert isinstance(runner, NativeRunner)
    with torch.inference_mode():
        runner.pool.values[0][3].fill_(bad)
    rows = [Row(array("i", [5]), -1, 2, array("i", [page]), Sample()) for page in (3, 4)]
    broken, sound = runner.collect(runner.launch(Batch(0, rows))).drawn
    assert broken is not None
    assert broken.failure is not None
    assert sound is not None
    assert sound.failure is None


def test_without_a_compiler_torch_does_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setattr(build, "CACHE", folder / "cache")
    build.library.cache_clear()
    try:
        runner = oracle.runner_of(folder)
    finally:
        build.library.cache_clear()
    assert not isinstance(runner, NativeRunner)
    assert "slower" in caplog.text
    [ids] = oracle.prompts(3, [20])
    assert logits(runner, ids, []).isfinite().all()

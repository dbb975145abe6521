"""Tests of the native decoder: memory it reads, threads, failures, and the lack of a compiler.

Parity with transformers for every family is tested in tests/parity.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import shutil
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.batch import (
    Batch,
    BatchRow,
    PageMove,
    PenalizedIds,
    RowResult,
    SampleParams,
    TokenCounts,
    TokenMask,
    WindowTable,
)
from continuo.engine.core.turn import uniform
from continuo.engine.device.native import compile, native_decoder
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.device.native.prebuild import prebuild
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.sampling import draw
from continuo.engine.sampling import Sampling
from tests.support import transformers_oracle as oracle
from tests.support.sampling_reference import Only

pytestmark = pytest.mark.torch

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler (cc) is installed"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    oracle.FAMILIES["qwen3"](**oracle.NATIVE_SIZES).save_pretrained(folder)
    return folder


def threads_of_process() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def logits(runner: TorchRunner, ids: list[int], cuts: list[int]) -> torch.Tensor:
    return oracle.chunk_end_logits(runner, ids, cuts)


@needs_compiler
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_unowned_slots_are_never_read(folder: Path, page_size: int) -> None:
    [ids] = oracle.random_prompts(1, [150])
    clean, dirty = (
        oracle.build_cpu_runner(folder, block_size=page_size, kv_cache_memory_bytes=8 << 20)
        for _ in range(2)
    )
    with torch.inference_mode():
        for pool in dirty.pool.keys + dirty.pool.values:
            pool.fill_(math.nan)
    cuts = [1, 2, 66, 67, 100]
    assert torch.equal(logits(clean, ids, cuts), logits(dirty, ids, cuts))


@needs_compiler
def test_logits_do_not_depend_on_the_number_of_threads(folder: Path) -> None:
    [ids] = oracle.random_prompts(2, [200])
    one, two = (oracle.build_cpu_runner(folder, threads=threads) for threads in (1, 2))
    assert torch.equal(logits(one, ids, [64, 65]), logits(two, ids, [64, 65]))


@needs_compiler
def test_logits_are_the_same_with_more_threads_than_cores(folder: Path) -> None:
    """Threads start late, sleep and are preempted in the middle of a part."""
    [ids] = oracle.random_prompts(4, [120])
    one, many = (oracle.build_cpu_runner(folder, threads=n) for n in (1, 4 * (os.cpu_count() or 1)))
    step_by_step = list(range(1, 120))
    assert torch.equal(logits(one, ids, step_by_step), logits(many, ids, step_by_step))


def launch_on_two_threads(folder: Path) -> tuple[TorchRunner, list[int], Any]:
    """Launch a step on two threads, with zeroed keys. Returns runner, ids and pending step."""
    runner = oracle.build_cpu_runner(folder, threads=2)
    with torch.inference_mode():
        runner.pool.keys[-1].zero_()
    [ids] = oracle.random_prompts(5, [200])
    pages = array("i", range(-(-len(ids) // runner.pool.page_size)))
    return (
        runner,
        ids,
        runner.launch(Batch(0, [BatchRow(array("i", ids), -1, 0, pages, SampleParams())])),
    )


@needs_compiler
def test_worker_threads_begin_a_step_before_collect(folder: Path) -> None:
    runner, ids, pending = launch_on_two_threads(folder)
    deadline = time.monotonic() + 20
    while not runner.pool.keys[-1].any():
        assert time.monotonic() < deadline, "no key of the last layer was written"
        time.sleep(0.001)
    [drawn] = runner.collect(pending).results
    assert drawn is not None
    assert drawn.id == int(logits(runner, ids, [])[-1].argmax())


@needs_compiler
def test_worker_threads_finish_a_step_that_is_near_its_end(folder: Path) -> None:
    runner, ids, pending = launch_on_two_threads(folder)
    launched_s = time.monotonic()
    assert runner.run_until_near_end(pending)
    assert runner.pool.keys[-1].any()
    time.sleep(2)
    [drawn] = runner.collect(pending).results
    assert drawn is not None
    assert drawn.id == int(logits(runner, ids, [])[-1].argmax())
    assert runner.collect(pending).model_s < (time.monotonic() - launched_s) / 2, (
        "idle time after the end of the step is not counted"
    )


@needs_compiler
def test_row_is_fed_the_id_drawn_by_the_previous_step(folder: Path) -> None:
    """The row is launched while worker threads still finish the previous step."""
    runner, ids, pending = launch_on_two_threads(folder)
    pages = array("i", range(20))
    output = list[int]()
    for number in range(1, 30):
        assert runner.run_until_near_end(pending)
        row = BatchRow(array("i"), 0, len(ids) + number - 1, pages, SampleParams())
        next_step = runner.launch(Batch(number, [row]))
        [drawn] = runner.collect(pending).results
        assert drawn is not None
        output.append(drawn.id)
        pending = next_step
    runner.discard(pending)
    log = ids + output
    cuts = list(range(len(ids), len(log)))
    assert logits(runner, log, cuts).argmax(1)[:-1].tolist() == output


class Growing(TokenMask):
    """Mask that allows the ids from `first` on, which the test increases from step to step."""

    def __init__(self, vocab: int) -> None:
        self.first, self._vocab = 0, vocab

    def compute_bitmask(self) -> bytes:
        return Only(set(range(self.first, self._vocab)), self._vocab).compute_bitmask()


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_penalties_and_masks_of_a_row_follow_the_step_before(folder: Path, threads: int) -> None:
    """Each step is launched before the id that the one before draws has been counted and the mask
    has been advanced; both are read afterwards. The ids are those of torch, step by step."""
    runner = oracle.build_cpu_runner(folder, threads=threads)
    assert runner.geometry.samples_late
    vocab, [prompt] = runner.geometry.vocab_size, oracle.random_prompts(5, [40])
    log, pages, mask = array("i", prompt), array("i", range(20)), Growing(vocab)
    penalized = PenalizedIds(TokenCounts(log), TokenCounts(log, len(prompt)))
    params = Sampling(
        temperature=0.9, top_p=0.9, repetition_penalty=1.8, frequency_penalty=0.5, logprobs=2
    )

    def sample(step: int) -> SampleParams:
        return SampleParams(params, uniform(7, step), penalized, mask)

    def collect(pending: Any) -> RowResult:
        [drawn] = runner.collect(pending).results
        assert drawn is not None
        log.append(drawn.id)
        penalized.seen.update()
        penalized.output.update()
        mask.first += 3
        return drawn

    steps = 25
    drawn = list[RowResult]()
    pending = runner.launch(Batch(0, [BatchRow(log[:], -1, 0, pages, sample(0))]))
    for step in range(1, steps):
        assert runner.run_until_near_end(pending) == (threads > 1)
        if threads == 1:
            drawn.append(collect(pending))
        start = len(prompt) + step - 1
        row = BatchRow(array("i"), 0, start, pages, sample(step))
        if threads == 1:
            row = BatchRow(log[-1:], -1, start, pages, sample(step))
        next_step = runner.launch(Batch(step, [row]))
        if threads > 1:
            drawn.append(collect(pending))
        pending = next_step
    drawn.append(collect(pending))

    reference = array("i", prompt)
    mask.first = 0
    for step, found in enumerate(drawn):
        penalized = PenalizedIds(TokenCounts(reference), TokenCounts(reference, len(prompt)))
        last = logits(runner, list(reference), [])[-1:]
        [expected] = draw(last, [sample(step)]).to_row_results([sample(step)])
        assert found.id == expected.id
        assert found.logprobs is not None
        assert expected.logprobs is not None
        assert found.logprobs.drawn == pytest.approx(expected.logprobs.drawn, abs=1e-4)
        assert [id for id, _ in found.logprobs.top] == [id for id, _ in expected.logprobs.top]
        reference.append(found.id)
        mask.first += 3
    assert len(set(reference[len(prompt) :])) > 5


@needs_compiler
def test_step_with_a_failing_mask_leaves_the_next_step_intact(folder: Path) -> None:
    """The decoder's threads wait for the mask when it fails."""
    runner, ids, pending = launch_on_two_threads(folder)
    expected = runner.collect(pending).results
    plain = BatchRow(array("i", ids), -1, 0, array("i", range(13)), SampleParams())
    too_short = SampleParams(mask=Only({1}, 8))
    for compute in (runner.run_until_near_end, runner.collect):
        row = BatchRow(plain.ids, -1, 0, plain.pages, too_short)
        pending = runner.launch(Batch(1, [row]))
        time.sleep(0.05)
        with pytest.raises(IndexError, match="the mask has 24 bits for a vocabulary of 144"):
            compute(pending)
        assert runner.collect(runner.launch(Batch(2, [plain]))).results == expected


@needs_compiler
def test_step_whose_threads_wait_for_its_masks_can_be_discarded(folder: Path) -> None:
    runner, ids, pending = launch_on_two_threads(folder)
    expected = runner.collect(pending).results
    plain = BatchRow(array("i", ids), -1, 0, array("i", range(13)), SampleParams())
    masked = BatchRow(plain.ids, -1, 0, plain.pages, SampleParams(mask=Only({1}, 144)))
    for number in range(20):
        pending = runner.launch(Batch(number, [masked]))
        time.sleep(0.005 * (number % 2))
        runner.discard(pending)
    [drawn] = runner.collect(runner.launch(Batch(21, [masked]))).results
    assert drawn == RowResult(1)
    assert runner.collect(runner.launch(Batch(22, [plain]))).results == expected


@needs_compiler
@pytest.mark.parametrize("failing_method", ["_decoder.allow_draws", "_move", "_decoder._buffer"])
def test_failed_step_does_not_affect_the_next_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing_method: str
) -> None:
    runner, ids, pending = launch_on_two_threads(folder)
    expected = runner.collect(pending).results
    plain = BatchRow(array("i", ids), -1, 0, array("i", range(13)), SampleParams())
    drawn = BatchRow(
        plain.ids, -1, 0, plain.pages, SampleParams(Sampling(temperature=1.0), uniform=0.5)
    )
    *path, name = failing_method.split(".")
    owner = getattr(runner, path[0]) if path else runner

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    def step() -> None:
        runner.collect(runner.launch(Batch(1, [drawn], [PageMove("copy", 15, 16)])))

    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fail)
        with pytest.raises(RuntimeError, match="no memory"):
            step()
    assert runner.collect(runner.launch(Batch(2, [plain]))).results == expected


@needs_compiler
def test_step_after_a_discarded_step_is_complete(folder: Path) -> None:
    runner, ids, pending = launch_on_two_threads(folder)
    expected = runner.collect(pending).results
    row = BatchRow(array("i", ids), -1, 0, array("i", range(13)), SampleParams())
    for number in range(100):
        runner.discard(runner.launch(Batch(number, [row])))
        if number % 3 == 0:
            repeated = runner.launch(Batch(number, [row]))
            assert runner.run_until_near_end(repeated)
            assert runner.collect(repeated).results == expected


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_prefill_can_be_discarded_after_each_operation(folder: Path, threads: int) -> None:
    """Each chunk is computed operation by operation and discarded: after the first one, after the
    second one, and so on. The chunk that is computed then is that of a fresh prefill."""
    runner = oracle.build_cpu_runner(folder, threads=threads)
    [ids] = oracle.random_prompts(6, [200])
    pages = array("i", range(13))
    pauses = 0
    for start in range(0, 200, 10):
        chunk = array("i", ids[start : start + 10])
        row = BatchRow(chunk, -1, start, pages, SampleParams() if start == 190 else None)
        pending = runner.launch(Batch(start, [row]))
        pauses += sum(runner.run_for(pending, 0.0) > 0 for _ in range(start // 10))
        runner.discard(pending)
        pending = runner.launch(Batch(start, [row]))
        while runner.run_for(pending, 0.0):
            pauses += 1
        result = runner.collect(pending)
        assert result.model_s > 0
    assert pauses > 100
    [drawn] = result.results
    assert drawn == RowResult(int(logits(runner, ids, [])[-1].argmax()))


@needs_compiler
def test_pending_step_ends_when_its_runner_is_deleted(folder: Path) -> None:
    runner, _, pending = launch_on_two_threads(folder)
    gc.collect()  # runners of other tests
    threads = threads_of_process()
    del runner, pending
    gc.collect()
    assert threads - threads_of_process(), "the runner's second thread has ended"


@needs_compiler
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_row_with_non_finite_logits_fails_alone(folder: Path, bad: float) -> None:
    runner = oracle.build_cpu_runner(folder)
    assert isinstance(runner, NativeRunner)
    with torch.inference_mode():
        runner.pool.values[0][3].fill_(bad)
    rows = [BatchRow(array("i", [5]), -1, 2, array("i", [page]), SampleParams()) for page in (3, 4)]
    broken, sound = runner.collect(runner.launch(Batch(0, rows))).results
    assert broken is not None
    assert broken.failure is not None
    assert sound is not None
    assert sound.failure is None


def test_torch_runner_is_used_without_a_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setattr(compile, "CACHE_FOLDER", folder / "cache")
    compile.load_library.cache_clear()
    try:
        runner = oracle.build_cpu_runner(folder)
    finally:
        compile.load_library.cache_clear()
    assert not isinstance(runner, NativeRunner)
    assert "slower" in caplog.text
    [ids] = oracle.random_prompts(3, [20])
    assert logits(runner, ids, []).isfinite().all()


def best_class() -> str:
    """Return the best class to which the processor of this machine belongs."""
    flags = set(compile._describe_processor().split())
    classes = compile.PROCESSOR_CLASSES[platform.machine()]
    return next(name for name, needed in classes.items() if needed <= flags)


@needs_compiler
def test_library_that_cannot_be_loaded_is_compiled_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel may have been built with a later C library than that of this machine."""
    defines = ("-DDIM=16", "-DPAGE_SIZE=16", "-DBF16=0", "-DGROUPS=1")
    prebuilt = tmp_path / "prebuilt" / compile.name_prebuilt("decoder.c", defines, best_class())
    prebuilt.parent.mkdir()
    prebuilt.write_bytes(b"not a library")
    monkeypatch.setattr(compile, "PREBUILT_FOLDER", prebuilt.parent)
    monkeypatch.setattr(compile, "CACHE_FOLDER", tmp_path / "cache")
    library = compile.load_library.__wrapped__("decoder.c", *defines)
    assert library is not None
    assert Path(library._name).parent == tmp_path / "cache"


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prebuilt_library_is_used_before_the_compiler(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    [ids] = oracle.random_prompts(3, [40])
    compiled = oracle.build_cpu_runner(folder, dtype)
    assert isinstance(compiled, NativeRunner)
    libraries = prebuild(tmp_path / "prebuilt", (oracle.NATIVE_SIZES["head_dim"],))
    classes = compile.PROCESSOR_CLASSES[platform.machine()]
    assert len(libraries) >= 2 * len(classes)
    loaded: list[str] = []
    load = compile.ctypes.CDLL
    monkeypatch.setattr(compile.ctypes, "CDLL", lambda path: (loaded.append(path), load(path))[1])
    monkeypatch.setattr(compile, "PREBUILT_FOLDER", tmp_path / "prebuilt")
    monkeypatch.setattr(compile, "CACHE_FOLDER", tmp_path / "cache")
    compile.load_library.cache_clear()
    try:
        runner = oracle.build_cpu_runner(folder, dtype)
    finally:
        compile.load_library.cache_clear()
    assert isinstance(runner, NativeRunner)
    expected = (
        tmp_path
        / "prebuilt"
        / compile.name_prebuilt(
            "decoder.c",
            ("DIM=16", "PAGE_SIZE=16", f"BF16={int(dtype == 'bfloat16')}", "GROUPS=1"),
            best_class(),
        )
    )
    assert [path for path in loaded if path] == [str(expected)]
    error = (logits(runner, ids, [7]) - logits(compiled, ids, [7])).abs().max()
    assert error < (1e-4 if dtype == "float32" else 0.1)


def out_of_bounds(runner: TorchRunner, ids: list[int], **differences: Any) -> Batch:
    """Return a batch of a valid row and a row with `ids`."""
    pages = {"pages": array("i", [1]), "start": 0} | differences
    good = BatchRow(array("i", [1, 2, 3]), -1, 0, array("i", [0]), SampleParams())
    bad = BatchRow(array("i", ids), -1, pages["start"], pages["pages"], SampleParams())
    return Batch(0, [good, bad])


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("id", [144, 6920, 1 << 30, -1])
def test_id_outside_the_vocabulary_fails_the_step(folder: Path, id: int, threads: int) -> None:
    """No memory outside the embedding is read, and the next step is not affected."""
    runner = oracle.build_cpu_runner(folder, threads=threads)
    assert isinstance(runner, NativeRunner)
    assert runner.geometry.vocab_size == 144
    batch = out_of_bounds(runner, [1, 2, id, 3])
    outside = f"row 1 of the step: id {id} is outside the vocabulary of 144"
    with pytest.raises(IndexError, match=outside):
        runner.launch(batch)
    with pytest.raises(IndexError, match=outside):
        runner.compute_logits(batch)
    [ids] = oracle.random_prompts(7, [40])
    pages = array("i", range(3))
    pending = runner.launch(Batch(1, [BatchRow(array("i", ids), -1, 0, pages, SampleParams())]))
    [drawn] = runner.collect(pending).results
    assert drawn is not None
    assert drawn.id == int(logits(runner, ids, [])[-1].argmax())


@needs_compiler
@pytest.mark.parametrize(
    ("differences", "message"),
    [
        ({"start": 510}, "positions 510 to 513 are outside the 512 of the model"),
        ({"start": -1}, "positions -1 to 2 are outside"),
        ({"pages": array("i", [1 << 30])}, "outside the pool"),
        ({"pages": array("i", [-1])}, "outside the pool"),
    ],
)
def test_row_outside_context_or_pool_fails_the_step(
    folder: Path, differences: dict[str, Any], message: str
) -> None:
    runner = oracle.build_cpu_runner(folder)
    if "start" in differences:
        differences = differences | {"pages": array("i", range(33))}
    with pytest.raises(IndexError, match=message):
        runner.launch(out_of_bounds(runner, [1, 2, 3], **differences))


@pytest.mark.parametrize("id", [144, 1 << 30, -1])
def test_torch_runner_refuses_an_id_outside_the_vocabulary(
    folder: Path, monkeypatch: pytest.MonkeyPatch, id: int
) -> None:
    monkeypatch.setattr(native_decoder.NativeDecoder, "try_create", lambda *_: None)
    runner = oracle.build_cpu_runner(folder)
    assert not isinstance(runner, NativeRunner)
    batch = out_of_bounds(runner, [1, 2, id, 3])
    with pytest.raises(IndexError, match=f"row 1 of the step: id {id} is outside the vocabulary"):
        runner.collect(runner.launch(batch))


@needs_compiler
@pytest.mark.parametrize(
    ("table", "ok"),
    [
        (WindowTable(1, array("i", [3, 4])), True),
        (WindowTable(0, array("i", [2, 3, 4])), True),
        (WindowTable(2, array("i", [4])), False),
        (WindowTable(-1, array("i", [1, 2, 3, 4])), False),
        (WindowTable(1, array("i", [3, 1 << 30])), False),
    ],
    ids=["from its window", "from the start", "too late", "before the start", "unknown page"],
)
def test_window_table_that_does_not_cover_the_row_fails_the_step(
    tmp_path: Path, table: WindowTable, ok: bool
) -> None:
    """The row starts at position 40 and sees the 20 positions before, in pages of 16."""
    model = oracle.small_model("Mistral", sliding_window=21, **oracle.NATIVE_SIZES)
    model.save_pretrained(tmp_path)
    runner = oracle.build_cpu_runner(tmp_path, block_size=16)
    assert isinstance(runner, NativeRunner)
    pages = array("i", range(3))
    row = BatchRow(array("i", [5]), -1, 40, pages, SampleParams(), (table,))
    if ok:
        assert runner.collect(runner.launch(Batch(0, [row]))).results[0] is not None
        return
    with pytest.raises(IndexError, match="row 0 of the step: one of its pages is outside"):
        runner.launch(Batch(0, [row]))

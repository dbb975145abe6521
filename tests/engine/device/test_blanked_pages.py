"""Tests of blanked pages on real models: each attention backend and each recurrence of a CPU.

The logits of a row that reads a position which no step has computed are not finite, so that its
turn fails. Nothing else fails: NaN behind the end of a row, or before its window, changes no id.
"""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from continuo.engine.batch import (
    FULL_GROUP,
    STATE_POOL,
    Batch,
    BatchRow,
    Geometry,
    PageMove,
    RowResult,
    SampleParams,
)
from continuo.engine.core.cache import PageLease, SessionAwareCache
from continuo.engine.device.native.native_decoder import NativeDecoder
from continuo.engine.device.runner import TorchRunner
from tests.parity.test_architectures import way_of
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES, Architecture, Way

pytestmark = pytest.mark.torch

NOT_FINITE = "the model's logits are not finite"
PAGE_SIZE = 16
KINDS: dict[str, tuple[str, Way, dict[str, Any]]] = {
    "C": ("Qwen3ForCausalLM", "C", {}),
    "C in bf16": ("Qwen3ForCausalLM", "C", {"dtype": "bfloat16"}),
    "C with int8": ("Qwen3ForCausalLM", "C", {"quantization": "int8"}),
    "windows in C": ("MistralForCausalLM", "C", {}),
    "soft caps in C": ("Gemma2ForCausalLM", "C", {}),
    "sinks and experts in C": ("GptOssForCausalLM", "C", {}),
    "convolutions in C": ("Lfm2ForCausalLM", "C", {}),
    "delta rule in C": ("Qwen3_5ForCausalLM", "C", {}),
    "torch": ("Olmo2ForCausalLM", "torch", {}),
    "torch in bf16": ("Olmo2ForCausalLM", "torch", {"dtype": "bfloat16"}),
    "windows in torch": ("Olmo3ForCausalLM", "torch", {}),
    "soft caps in torch": ("Gemma2ForCausalLM", "torch", {}),
    "sinks and experts in torch": ("GptOssForCausalLM", "torch", {}),
    "convolutions in torch": ("Lfm2ForCausalLM", "torch", {}),
    "delta rule in torch": ("OlmoHybridForCausalLM", "torch", {}),
    "Mamba-2 and experts": ("NemotronHForCausalLM", "torch", {}),
    "states alone": ("Mamba2ForCausalLM", "torch", {}),
    "transformers": ("CohereForCausalLM", "transformers", {}),
    "windows in transformers": ("Starcoder2ForCausalLM", "transformers", {}),
}
"""By name: the architecture, what runs it, and further fields of EngineConfig."""


class Kind:
    """A model of one kind, and the vocabulary of its checkpoint."""

    def __init__(self, name: str, folder: Path) -> None:
        architecture, self.way, self.options = KINDS[name]
        model = _find(architecture).make()
        model.save_pretrained(folder)
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self.folder = folder

    def build(self) -> TorchRunner:
        bounds = {"block_size": PAGE_SIZE, "max_model_len": 256, **self.options}
        with pytest.MonkeyPatch.context() as patch:
            if self.way == "torch":  # as on a GPU, and where there is no compiler
                patch.setattr(NativeDecoder, "try_create", lambda *_: None)
            runner = oracle.build_cpu_runner(self.folder, **bounds)
        assert way_of(runner) == self.way
        return runner

    def ids(self, seed: int, length: int) -> array[int]:
        [ids] = oracle.random_prompts(seed, [length], self.vocabulary)
        return array("i", ids)


def _find(name: str) -> Architecture:
    return next(each for each in ARCHITECTURES if each.name == name)


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    if KINDS[request.param][1] == "C" and shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) is installed")
    return Kind(request.param, tmp_path_factory.mktemp("model"))


def row_of(cache: SessionAwareCache, lease: PageLease, ids: array[int], start: int) -> BatchRow:
    """Make the row of the last reservation, which computes ids[start:]."""
    memory = cache.components.row_memory(lease)
    return BatchRow(ids[start:], -1, start, lease.pages, SampleParams(), *memory)


def run(runner: TorchRunner, rows: list[BatchRow], moves: list[PageMove]) -> list[RowResult]:
    results = runner.collect(runner.launch(Batch(0, rows, moves))).results
    return [drawn for drawn in results if drawn is not None]


def compute(
    runner: TorchRunner, cache: SessionAwareCache, lease: PageLease, ids: array[int]
) -> RowResult:
    """Compute all ids of a lease that are not committed, in one row."""
    start = lease.committed
    assert cache.reserve(lease, len(ids) - start)
    [drawn] = run(runner, [row_of(cache, lease, ids, start)], cache.take_moves())
    cache.commit(lease, len(ids) - start)
    return drawn


def units_read(geometry: Geometry, row: BatchRow) -> dict[int, int]:
    """Return a page, or state slot, that a row reads of each group that the model has."""
    units = {n: table.pages[0] for n, table in enumerate(row.windows, 1)}
    if geometry.has_full_layers:
        units[FULL_GROUP] = row.pages[0]
    if geometry.state_slots:
        units[STATE_POOL] = row.slots.read
    return units


@pytest.mark.parametrize("blanks_pages", [True, False])
def test_row_behind_positions_never_computed_fails(kind: Kind, blanks_pages: bool) -> None:
    """Only the last 16 of 31 ids are computed, on pages that another session had. Without blanks
    the row reads the KV of that session, and draws an id."""
    runner = kind.build()
    cache = SessionAwareCache.for_geometry(runner.geometry, blanks_pages=blanks_pages)
    other, lease = cache.open("other"), cache.open()
    compute(runner, cache, other, kind.ids(1, 40))
    cache.close(other, array("i"), 0)
    ids = kind.ids(2, 31)
    assert cache.reserve(lease, 15)
    assert cache.reserve(lease, 16)
    [drawn] = run(runner, [row_of(cache, lease, ids, 15)], cache.take_moves())
    assert drawn.failure == (NOT_FINITE if blanks_pages else None)


def test_row_that_reads_one_blank_page_or_slot_fails_alone(kind: Kind) -> None:
    """For each group of pages, and the states: all else is as it was computed."""
    runner = kind.build()
    cache = SessionAwareCache.for_geometry(runner.geometry, blanks_pages=True)
    leases, logs = [cache.open(name) for name in "ab"], [kind.ids(n, 40) for n in (3, 4)]
    for lease, ids in zip(leases, logs, strict=True):
        assert compute(runner, cache, lease, ids).failure is None
        ids.append(1)
        assert cache.reserve(lease, 1)
    rows = [row_of(cache, lease, ids, 40) for lease, ids in zip(leases, logs, strict=True)]
    expected = [drawn.id for drawn in run(runner, rows, cache.take_moves())]
    units = units_read(runner.geometry, rows[0])
    assert units
    for group, unit in units.items():
        held = [tensor[unit].clone() for tensor in tensors_of(runner, group)]
        blank = PageMove("blank", unit, unit, group)
        broken, sound = run(runner, rows, [blank])
        assert (broken.failure, sound.failure, sound.id) == (NOT_FINITE, None, expected[1])
        for tensor, content in zip(tensors_of(runner, group), held, strict=True):
            with torch.inference_mode():
                tensor[unit] = content
        assert [drawn.id for drawn in run(runner, rows, [])] == expected


def tensors_of(runner: TorchRunner, group: int) -> list[torch.Tensor]:
    """List the tensors of one group of pages, or of the states."""
    pool = runner.pool
    if group == STATE_POOL:
        return [tensor for layer in pool.states for tensor in layer]
    layers = [n for n, other in enumerate(pool.groups) if other == group and pool.shapes[n].heads]
    return [tensors[n] for tensors in (pool.keys, pool.values) for n in layers]


def test_positions_that_no_row_reads_may_be_blank(kind: Kind) -> None:
    """Rows of all lengths, in one step and in chunks, draw the same ids on blank pages."""
    runner = kind.build()
    geometry = runner.geometry
    prompts = oracle.random_prompts(5, [3, 70, 1, 37, 16, 40], kind.vocabulary)
    expected = oracle.serve_mixed_batches(runner, prompts, 6)
    totals = {FULL_GROUP: geometry.pages, STATE_POOL: geometry.state_slots}
    totals |= {n: group.pages for n, group in enumerate(geometry.windows, 1)}
    for group, total in totals.items():
        with torch.inference_mode():
            runner.pool.move([PageMove("blank", n, n, group) for n in range(total)])
    assert oracle.serve_mixed_batches(runner, prompts, 6) == expected

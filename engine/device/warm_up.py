# pyright: basic
"""Run steps of every kind before the first request, so that no kernel is compiled, and no option of
one is measured, while a turn waits.

A kernel is compiled once for each set of its constants, and what they depend on is the model alone,
whether a row has one new token or several, and how its id is drawn.
"""

from __future__ import annotations

import logging
import time
from array import array

from continuo.engine.batch import (
    NO_STATE,
    Batch,
    BatchRow,
    Geometry,
    PenalizedIds,
    SampleParams,
    StateSlots,
    TokenCounts,
    TokenMask,
    WindowTable,
)
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.weights import ProgressCallback
from continuo.engine.sampling import Sampling

log = logging.getLogger(__name__)

ROWS_MAX = 8
CONTEXT_MAX = 4096
"""Length of the rows, in tokens: long enough that a context is split among several programs."""
NEW_TOKENS_MAX = 256
"""New tokens of a row that has several."""


class _AllowAll(TokenMask):
    def __init__(self, vocab_size: int) -> None:
        self._bytes = b"\xff" * (-(-vocab_size // 8))

    def compute_bitmask(self) -> bytes:
        return self._bytes


def warm_up(runner: TorchRunner, progress: ProgressCallback) -> None:
    """Run steps of each kind. The pages and state slots of the pool must be unused; their contents
    are undefined afterwards."""
    start_s = time.perf_counter()
    batches = _make_batches(runner.geometry)
    for number, batch in enumerate(batches):
        progress("compiling kernels", number / len(batches))
        runner.collect(runner.launch(batch))
    log.info("kernels compiled in %.1f s", time.perf_counter() - start_s)


def _make_batches(geometry: Geometry) -> list[Batch]:
    """Make a batch of decode rows for each way to draw an id, and one of longer rows."""
    context = min(CONTEXT_MAX, geometry.max_model_len, geometry.pages * geometry.page_size)
    new_tokens = min(NEW_TOKENS_MAX, geometry.batched_tokens, context)
    counts = PenalizedIds(TokenCounts(array("i", [0])), TokenCounts(array("i", [0])))
    mask = _AllowAll(geometry.vocab_size)
    warm = Sampling(temperature=1.0, top_p=0.9)
    samples = [
        SampleParams(),
        SampleParams(warm),
        SampleParams(warm, mask=mask),
        # Logits in fp32.
        SampleParams(
            Sampling(temperature=1.0, logprobs=1, presence_penalty=0.5, repetition_penalty=1.1),
            penalized=counts,
            mask=mask,
        ),
    ]
    rows = min(ROWS_MAX, geometry.batched_tokens, geometry.state_slots or ROWS_MAX)
    lengths = [(context, 1)] * rows
    batches = [_make_batch(geometry, lengths, sample) for sample in samples]
    return [*batches, _make_batch(geometry, [(context, new_tokens)], samples[0])]


def _make_batch(geometry: Geometry, lengths: list[tuple[int, int]], sample: SampleParams) -> Batch:
    """Make a batch of rows that have (tokens, new tokens)."""
    return Batch(
        0,
        [
            _make_row(geometry, number, length - count, count, sample)
            for number, (length, count) in enumerate(lengths)
        ],
    )


def _make_row(
    geometry: Geometry, number: int, start: int, count: int, sample: SampleParams
) -> BatchRow:
    size = geometry.page_size
    needed = -(-(start + count) // size)
    windows: list[WindowTable] = []
    for group in geometry.windows:
        first = max(start - group.window + 1, 0) // size
        windows.append(WindowTable(first, _take_pages(number, needed - first, group.pages)))
    return BatchRow(
        ids=array("i", [0] * count),
        feed_row=-1,
        start=start,
        pages=_take_pages(number, needed, geometry.pages),
        sample=sample,
        windows=tuple(windows),
        slots=StateSlots(-1, number) if geometry.state_slots else NO_STATE,
    )


def _take_pages(number: int, count: int, total: int) -> array[int]:
    """Take pages for a row, all different from those of other rows if the pool has enough."""
    return array("i", [(number * count + n) % total for n in range(count)])

# pyright: basic
"""The runner of models that the native decoder supports; a drop-in replacement for `TorchRunner` on
CPUs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from continuo.engine.batch import Batch, BatchResult, BatchRow, PageMove
from continuo.engine.device.native.native_decoder import NativeDecoder
from continuo.engine.device.native.native_sampling import PackedSampling
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.sampling import assign_to_rows, is_plain_greedy


@dataclass(slots=True)
class NativePendingStep:
    """A launched step: the ticket for `collect`."""

    rows: list[BatchRow]
    started_s: float | None
    """Value of `time.perf_counter` when the computation started; None before that."""
    sampling: PackedSampling | None = None
    """How the ids are drawn; None until that is known."""
    result: BatchResult | None = None
    """The result; None until it is computed."""


class NativeRunner(TorchRunner):
    """Runs steps on a CPU with the native decoder, one at a time.

    The decoder's threads start a step while the caller still does other work. Then the caller joins
    in, by `collect` until the step's end, by `run_for` for some time, or by `run_until_near_end`
    until the last part of the step, which the decoder's threads compute alone. As it joins in, it
    packs the penalties and masks, which depend on the ids of the previous step.
    """

    def __init__(self, decoder: NativeDecoder, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._geometry = msgspec.structs.replace(self._geometry, samples_late=True)
        self._decoder = decoder
        self._last_step: NativePendingStep | None = None

    def launch(self, batch: Batch) -> NativePendingStep:
        step = self._decoder.pack(batch.rows, self.threads)
        last, self._last_step = self._last_step, None
        previous = None if last is None else self._finish(last)
        pending = NativePendingStep(batch.rows, None if self.threads == 1 else time.perf_counter())
        if batch.moves:
            self._move(batch.moves)
        for index, row in enumerate(batch.rows):
            if row.feed_row >= 0:
                step.fed_ids[index] = _fed_id(previous, row.feed_row)
        self._decoder.begin(step, is_greedy=all(map(_is_plain_greedy, batch.rows)))
        self._last_step = pending
        return pending

    def run_for(self, ticket: NativePendingStep, seconds: float) -> float:
        _, started_s = self._join(ticket)
        computed = self._decoder.run_until_near_end(seconds)
        return (time.perf_counter() - started_s) * (1 / computed - 1)

    def run_until_near_end(self, ticket: NativePendingStep) -> bool:
        """Compute a step together with the decoder's threads, and return before its end, which
        those threads compute alone.

        Returns False, without computing anything, if the decoder has no threads but the caller's.
        """
        if self.threads == 1:
            return False
        self._join(ticket)
        self._decoder.run_until_near_end()
        return True

    def collect(self, ticket: NativePendingStep) -> BatchResult:
        if ticket is self._last_step:  # Collected before the next launch, so it feeds no row.
            self._last_step = None
        return self._finish(ticket)

    def discard(self, ticket: NativePendingStep) -> None:
        self._decoder.discard()
        ticket.result = BatchResult([None] * len(ticket.rows), 0.0)

    def _finish(self, ticket: NativePendingStep) -> BatchResult:
        if ticket.result is None:
            sampling, started_s = self._join(ticket)
            drawn_ids, ago_s = self._decoder.finish()
            ended_s = time.perf_counter() - ago_s
            results = assign_to_rows(sampling.to_row_results(drawn_ids), ticket.rows)
            ticket.result = BatchResult(results, ended_s - started_s)
        return ticket.result

    def _join(self, ticket: NativePendingStep) -> tuple[PackedSampling, float]:
        """Determine how the ids of a step are drawn, and set it, before the caller joins in.
        Returns that, and when the computation started."""
        if ticket.started_s is None:
            ticket.started_s = time.perf_counter()
        if ticket.sampling is None:
            samples = [sample for row in ticket.rows for sample in row.samples]
            try:
                ticket.sampling = PackedSampling.pack(samples, self._decoder.vocab_size)
                if any(ticket.sampling.addresses):
                    self._decoder.allow_draws(ticket.sampling)
            except Exception:
                self.discard(ticket)
                raise
        return ticket.sampling, ticket.started_s

    @torch.inference_mode()
    def _move(self, moves: list[PageMove]) -> None:
        self.pool.move(moves)

    def compute_logits(self, batch: Batch) -> Tensor:
        self._decoder.begin(self._decoder.pack(batch.rows, self.threads))
        return self._decoder.read_logits(len(self._decoder.finish()[0])).clone()


def _is_plain_greedy(row: BatchRow) -> bool:
    return all(map(is_plain_greedy, row.samples))


def _fed_id(previous: BatchResult | None, row: int) -> int:
    """Return the id that row `row` of the previous step drew. For a failed row, returns an
    arbitrary valid id, because the result of the row fed with that id is discarded."""
    drawn = None if previous is None else previous.results[row]
    assert drawn is not None, "a row is fed, but the previous step drew nothing"
    return max(drawn.id, 0)

# pyright: basic
"""The runner of models that our own C does: the same batches, the same answers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import Batch, Drawn, Move, Row, Sample, Sampled
from engine.device.native.decoder import NativeDecoder
from engine.device.runner import TorchRunner
from engine.device.sampling import draw, is_plain

LIGHT_WORK, WEIGHT_WORK = 100_000_000, 4
"""Multiplications and additions, and bytes of KV, up to which a step runs on one thread: a few
milliseconds. Fetching a weight from memory counts as four."""


@dataclass(slots=True)
class Begun:
    """A step that was begun. `since_s`: other threads are at it; None: nobody is."""

    rows: list[Row]
    since_s: float | None


class NativeRunner(TorchRunner):
    """For a CPU, where no step runs ahead: threads of its own begin a step while its caller still
    has other things to do; then they do it together."""

    def __init__(self, decoder: NativeDecoder, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._decoder = decoder

    def launch(self, batch: Batch) -> Begun:
        began = time.perf_counter()
        if batch.moves:
            self._move(batch.moves)
        light = self.threads == 1 or self._light(batch.rows)
        self._decoder.begin(batch.rows, 1 if light else self.threads)
        return Begun(batch.rows, None if light else began)

    def collect(self, ticket: Begun) -> Sampled:
        began = time.perf_counter() if ticket.since_s is None else ticket.since_s
        likely = self._decoder.finish()
        samples = [row.sample for row in ticket.rows if row.sample is not None]
        if min(likely, default=0) >= 0 and all(map(is_plain, samples)):
            drawn = [Drawn(id) for id in likely]
        else:
            drawn = self._draw(samples)
        found = iter(drawn)
        answers = [None if row.sample is None else next(found) for row in ticket.rows]
        return Sampled(answers, time.perf_counter() - began)

    @torch.inference_mode()
    def _move(self, moves: list[Move]) -> None:
        self.pool.move(moves)

    @torch.inference_mode()
    def _draw(self, samples: list[Sample]) -> list[Drawn]:
        torch.set_num_threads(1)
        return draw(self._decoder.logits(len(samples)), samples).answers(samples)

    def logits(self, batch: Batch) -> Tensor:
        self._decoder.begin(batch.rows, self.threads)
        return self._decoder.logits(len(self._decoder.finish())).clone()

    def _light(self, rows: list[Row]) -> bool:
        tokens = sum(row.count for row in rows)
        context = sum(row.start + row.count for row in rows)
        work = max(tokens, WEIGHT_WORK) * self.parameters + context * self.token_bytes
        return work <= LIGHT_WORK

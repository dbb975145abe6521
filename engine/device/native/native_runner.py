# pyright: basic
"""The runner of models that our own C does: the same batches, the same answers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from continuo.engine.batch import Batch, Drawn, Move, Row, Sample, Sampled
from continuo.engine.device.native.native_decoder import NativeDecoder
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.sampling import draw, is_plain

LIGHT_WORK, WEIGHT_WORK = 100_000_000, 4
"""Multiplications and additions, and bytes of KV, up to which a step runs on one thread: a few
milliseconds. Fetching a weight from memory counts as four."""


@dataclass(slots=True)
class Begun:
    """A step that was begun. `alone`: nobody is at it but who asks for it."""

    rows: list[Row]
    alone: bool
    since_s: float
    sampled: Sampled | None = None
    """Once it is done."""


class NativeRunner(TorchRunner):
    """For a CPU, where no step runs ahead: threads of its own begin a step while its caller still
    has other things to do, then they do it together, and its end is theirs again."""

    def __init__(self, decoder: NativeDecoder, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._decoder = decoder
        self._last: Begun | None = None

    def launch(self, batch: Batch) -> Begun:
        alone = self.threads == 1 or self._light(batch.rows)
        step = self._decoder.plan(batch.rows, 1 if alone else self.threads)
        last, self._last = self._last, None
        before = None if last is None else self._done(last)
        begun = Begun(batch.rows, alone, time.perf_counter())
        if batch.moves:
            self._move(batch.moves)
        for place, row in enumerate(batch.rows):
            if row.feed >= 0:
                step.fed[place] = _drawn(before, row.feed)
        self._decoder.begin(step)
        self._last = begun
        return begun

    def approach(self, ticket: Begun) -> bool:
        """Only of ids drawn in our C: others are late, and need a thread for themselves."""
        if ticket.alone or not all(map(_is_plain, ticket.rows)):
            return False
        self._decoder.approach()
        return True

    def collect(self, ticket: Begun) -> Sampled:
        if ticket is self._last:  # all that it draws is known when the next one is planned
            self._last = None
        return self._done(ticket)

    def abandon(self, ticket: Begun) -> None:
        self._decoder.abandon()
        ticket.sampled = Sampled([None] * len(ticket.rows), 0.0)

    def _done(self, ticket: Begun) -> Sampled:
        if ticket.sampled is None:
            if ticket.alone:
                ticket.since_s = time.perf_counter()
            likely, ago_s = self._decoder.finish()
            ended_s = time.perf_counter() - ago_s
            samples = [row.sample for row in ticket.rows if row.sample is not None]
            if min(likely, default=0) >= 0 and all(map(is_plain, samples)):
                drawn = [Drawn(id) for id in likely]
            else:
                drawn = self._draw(samples)
                ended_s = time.perf_counter()
            found = iter(drawn)
            answers = [None if row.sample is None else next(found) for row in ticket.rows]
            ticket.sampled = Sampled(answers, ended_s - ticket.since_s)
        return ticket.sampled

    @torch.inference_mode()
    def _move(self, moves: list[Move]) -> None:
        self.pool.move(moves)

    @torch.inference_mode()
    def _draw(self, samples: list[Sample]) -> list[Drawn]:
        torch.set_num_threads(1)
        return draw(self._decoder.logits(len(samples)), samples).answers(samples)

    def logits(self, batch: Batch) -> Tensor:
        self._decoder.begin(self._decoder.plan(batch.rows, self.threads))
        return self._decoder.logits(len(self._decoder.finish()[0])).clone()

    def _light(self, rows: list[Row]) -> bool:
        tokens = sum(row.count for row in rows)
        context = sum(row.start + row.count for row in rows)
        work = max(tokens, WEIGHT_WORK) * self.parameters + context * self.token_bytes
        return work <= LIGHT_WORK


def _is_plain(row: Row) -> bool:
    return row.sample is None or is_plain(row.sample)


def _drawn(before: Sampled | None, row: int) -> int:
    """The id that this row has drawn; any at all if it has failed, for then nobody asks."""
    drawn = None if before is None else before.drawn[row]
    assert drawn is not None, "a row is fed, and the step before drew nothing"
    return max(drawn.id, 0)

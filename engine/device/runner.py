# pyright: basic
"""The device behind the Runner protocol: launch a batch, collect what it drew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from continuo.engine.batch import Batch, Drawn, Geometry, Runner, Sample, Sampled
from continuo.engine.device import step_inputs
from continuo.engine.device.attention.backend import Backend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.kv_sizing import bytes_per_token
from continuo.engine.device.model import Model
from continuo.engine.device.sampling import Draw, draw
from continuo.engine.device.step_inputs import Step

LIGHT_WORK, WEIGHT_WORK = 300_000_000, 8
"""Multiplications and additions, and bytes of KV, up to which a step runs on one CPU thread: some
ten milliseconds. Several threads wait for one another after every operation, and wherever another
process wants a core too, that costs many times what they save. Fetching a weight from memory
counts as eight."""


@dataclass(slots=True)
class Ticket:
    """A step under way. On CUDA `done` is recorded behind its last copy to the host."""

    sampled: list[int]
    samples: list[Sample]
    rows: int
    draw: Draw | None
    model_s: float
    begun: torch.cuda.Event | None = None
    done: torch.cuda.Event | None = None


@dataclass(slots=True)
class Previous:
    """The ids that the step before has drawn, on the device, and which of them is which row's."""

    ids: Tensor | None
    place: dict[int, int]


class TorchRunner(Runner[Any]):
    """Runs batches on one torch device; called from one thread."""

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        attention: Backend,
        geometry: Geometry,
        device: torch.device,
        parameters: int = 0,
    ) -> None:
        """`parameters` of the model tell light steps from heavy ones."""
        self.model, self.pool, self.attention, self.device = model, pool, attention, device
        self.parameters, self.threads = parameters, torch.get_num_threads()
        self.token_bytes = bytes_per_token(pool.shapes, pool.keys[0].dtype)
        self._geometry = geometry
        self._previous = Previous(None, {})

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    def launch(self, batch: Batch) -> Ticket | Batch:
        """On a CPU where no step runs ahead, `collect` does it."""
        here = self.device.type == "cpu" and not self._geometry.steps_ahead
        return batch if here else self._start(batch)

    @torch.inference_mode()
    def _start(self, batch: Batch) -> Ticket:
        begun = time.perf_counter()
        events = self._events()
        if batch.moves:
            self.pool.move(batch.moves)
        step = step_inputs.build(batch, self.pool.page_size, self.device, self.model.vocab)
        self._feed(step)
        if events is None:
            torch.set_num_threads(1 if self._light(step) else self.threads)
        logits = self.forward(step)
        samples = [row.sample for row in batch.rows if row.sample is not None]
        result = None
        self._previous = Previous(None, {})
        if samples:
            result = draw(logits, samples)
            places = {row: place for place, row in enumerate(step.sampled)}
            self._previous = Previous(result.ids, places)
            result = result.to_host()
        ticket = Ticket(step.sampled, samples, len(batch.rows), result, 0.0)
        if events is None:
            ticket.model_s = time.perf_counter() - begun
        else:
            ticket.begun, ticket.done = events
            ticket.done.record()
        return ticket

    def _light(self, step: Step) -> bool:
        tokens, context = int(step.first[-1]), int((step.starts + step.counts).sum())
        work = max(2 * tokens, WEIGHT_WORK) * self.parameters + context * self.token_bytes
        return work <= LIGHT_WORK

    def forward(self, step: Step) -> Tensor:
        """The logits [S, vocab] of a step, its keys and values written to the pool."""
        attend = self.attention.attend(step, self.pool)
        return self.model(step.tokens, step.positions, attend, step.last)

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:
        """[S, vocab], of the rows that draw an id: what `launch` draws from."""
        return self.forward(
            step_inputs.build(batch, self.pool.page_size, self.device, self.model.vocab)
        )

    def collect(self, ticket: Ticket | Batch) -> Sampled:
        if isinstance(ticket, Batch):
            ticket = self._start(ticket)
        if ticket.begun is not None and ticket.done is not None:
            ticket.done.synchronize()
            ticket.model_s = ticket.begun.elapsed_time(ticket.done) / 1000
        drawn: list[Drawn | None] = [None] * ticket.rows
        if ticket.draw is not None:
            answers = ticket.draw.answers(ticket.samples)
            for row, answer in zip(ticket.sampled, answers, strict=True):
                drawn[row] = answer
        return Sampled(drawn, ticket.model_s)

    def works(self) -> bool:
        """Whether CUDA still answers: after an illegal access or a failed assertion on the device,
        every later call of this process returns the same error."""
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def _feed(self, step: Step) -> None:
        """Put the ids drawn by the previous step where this step's fed rows want them."""
        if not step.fed:
            return
        assert self._previous.ids is not None, "a row is fed, and the step before drew nothing"
        places = [self._previous.place[row] for _, row in step.fed]
        where = torch.tensor([[token for token, _ in step.fed], places])
        where = step_inputs.upload(where.numpy(), self.device)
        step.tokens.index_copy_(0, where[0], self._previous.ids[where[1]])

    def _events(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        if self.device.type != "cuda":
            return None
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        return begun, done

# pyright: basic
"""The device behind the Runner protocol: launch a batch, collect what it drew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from continuo.engine.batch import Batch, BatchResult, Geometry, RowResult, Runner, SampleParams
from continuo.engine.device import step_inputs
from continuo.engine.device.attention.backend import AttentionBackend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.kv_sizing import bytes_per_token
from continuo.engine.device.model import CausalLM
from continuo.engine.device.sampling import SamplerOutput, draw
from continuo.engine.device.step_inputs import StepInputs

SINGLE_THREAD_WORK_MAX, WEIGHT_READ_COST = 300_000_000, 8
"""Multiplications and additions, and bytes of KV, up to which a step runs on one CPU thread: some
ten milliseconds. Several threads wait for one another after every operation, and wherever another
process wants a core too, that costs many times what they save. Fetching a weight from memory
counts as eight."""


@dataclass(slots=True)
class PendingStep:
    """A step under way. On CUDA `done` is recorded behind its last copy to the host."""

    sampled_rows: list[int]
    samples: list[SampleParams]
    row_count: int
    output: SamplerOutput | None
    model_s: float
    start_event: torch.cuda.Event | None = None
    done_event: torch.cuda.Event | None = None


@dataclass(slots=True)
class PreviousOutput:
    """The ids that the step before has drawn, on the device, and which of them is which row's."""

    ids: Tensor | None
    index_by_row: dict[int, int]


class TorchRunner(Runner[Any]):
    """Runs batches on one torch device; called from one thread."""

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        attention: AttentionBackend,
        geometry: Geometry,
        device: torch.device,
        parameter_count: int = 0,
    ) -> None:
        """`parameters` of the model tell light steps from heavy ones."""
        self.model, self.pool, self.attention, self.device = model, pool, attention, device
        self.parameter_count, self.threads = parameter_count, torch.get_num_threads()
        self.token_bytes = bytes_per_token(pool.shapes, pool.keys[0].dtype)
        self._geometry = geometry
        self._previous = PreviousOutput(None, {})

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    def launch(self, batch: Batch) -> PendingStep | Batch:
        """On a CPU where no step runs ahead, `collect` does it."""
        here = self.device.type == "cpu" and not self._geometry.steps_ahead
        return batch if here else self._start(batch)

    @torch.inference_mode()
    def _start(self, batch: Batch) -> PendingStep:
        begun = time.perf_counter()
        events = self._create_events()
        if batch.moves:
            self.pool.move(batch.moves)
        step = step_inputs.build_inputs(
            batch, self.pool.page_size, self.device, self.model.vocab_size
        )
        self._feed(step)
        if events is None:
            torch.set_num_threads(1 if self._is_light(step) else self.threads)
        logits = self.forward(step)
        samples = [row.sample for row in batch.rows if row.sample is not None]
        result = None
        self._previous = PreviousOutput(None, {})
        if samples:
            result = draw(logits, samples)
            places = {row: place for place, row in enumerate(step.sampled_rows)}
            self._previous = PreviousOutput(result.ids, places)
            result = result.to_host()
        ticket = PendingStep(step.sampled_rows, samples, len(batch.rows), result, 0.0)
        if events is None:
            ticket.model_s = time.perf_counter() - begun
        else:
            ticket.start_event, ticket.done_event = events
            ticket.done_event.record()
        return ticket

    def _is_light(self, step: StepInputs) -> bool:
        tokens, context = int(step.row_offsets[-1]), int((step.starts + step.counts).sum())
        work = max(2 * tokens, WEIGHT_READ_COST) * self.parameter_count + context * self.token_bytes
        return work <= SINGLE_THREAD_WORK_MAX

    def forward(self, step: StepInputs) -> Tensor:
        """The logits [S, vocab] of a step, its keys and values written to the pool."""
        attend = self.attention.bind(step, self.pool)
        return self.model(step.tokens, step.positions, attend, step.logit_indices)

    @torch.inference_mode()
    def compute_logits(self, batch: Batch) -> Tensor:
        """[S, vocab], of the rows that draw an id: what `launch` draws from."""
        return self.forward(
            step_inputs.build_inputs(batch, self.pool.page_size, self.device, self.model.vocab_size)
        )

    def collect(self, ticket: PendingStep | Batch) -> BatchResult:
        if isinstance(ticket, Batch):
            ticket = self._start(ticket)
        if ticket.start_event is not None and ticket.done_event is not None:
            ticket.done_event.synchronize()
            ticket.model_s = ticket.start_event.elapsed_time(ticket.done_event) / 1000
        drawn: list[RowResult | None] = [None] * ticket.row_count
        if ticket.output is not None:
            answers = ticket.output.to_row_results(ticket.samples)
            for row, answer in zip(ticket.sampled_rows, answers, strict=True):
                drawn[row] = answer
        return BatchResult(drawn, ticket.model_s)

    def is_usable(self) -> bool:
        """Whether CUDA still answers: after an illegal access or a failed assertion on the device,
        every later call of this process returns the same error."""
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def _feed(self, step: StepInputs) -> None:
        """Put the ids drawn by the previous step where this step's fed rows want them."""
        if not step.fed_tokens:
            return
        assert self._previous.ids is not None, "a row is fed, and the step before drew nothing"
        places = [self._previous.index_by_row[row] for _, row in step.fed_tokens]
        where = torch.tensor([[token for token, _ in step.fed_tokens], places])
        where = step_inputs.upload(where.numpy(), self.device)
        step.tokens.index_copy_(0, where[0], self._previous.ids[where[1]])

    def _create_events(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        if self.device.type != "cuda":
            return None
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        return begun, done

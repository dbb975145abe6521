# pyright: basic
"""Run batches on a torch device: the implementation of the `Runner` protocol in torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from continuo.engine.batch import Batch, BatchResult, BatchRow, Geometry, Runner, SampleParams
from continuo.engine.device import step_inputs
from continuo.engine.device.attention.backend import AttentionBackend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.kv_sizing import bytes_per_token
from continuo.engine.device.model import CausalLM
from continuo.engine.device.sampling import SamplerOutput, assign_to_rows, draw
from continuo.engine.device.step_inputs import StepInputs
from continuo.engine.device.step_states import PooledStates

if TYPE_CHECKING:
    # It needs triton.
    from continuo.engine.device.step_graphs import StepGraphs

SINGLE_THREAD_WORK_MAX, WEIGHT_READ_COST = 300_000_000, 8
"""Maximum work of a step that runs on a single CPU thread, in multiply-adds plus bytes of KV: about
ten milliseconds of computation. Several threads wait for one another after every operation; where
other processes compete for the cores, this costs many times what it saves. Reading a weight from
memory counts as WEIGHT_READ_COST multiply-adds."""


@dataclass(slots=True)
class PendingStep:
    """A step in flight: the ticket for `collect`."""

    rows: list[BatchRow]
    samples: list[SampleParams]
    output: SamplerOutput | None
    """The draws of all rows, one for each of `samples`; None if there are none."""
    model_s: float
    """Seconds of computation; on CUDA set by `collect`."""
    start_event: torch.cuda.Event | None = None
    done_event: torch.cuda.Event | None = None
    """Recorded after the step's last copy to the host; None on a CPU, like `start_event`."""


@dataclass(slots=True)
class PreviousOutput:
    """Ids drawn by the previous step, on the device, and the index in `ids` of each row that drew
    one, and no others after drafts."""

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
        """Args:
        model: with its weights loaded, on `device`.
        pool: KV and recurrent states; only the runner writes to it, as the batches say.
        attention: computes attention over the pool, by the kernels of this device.
        geometry: sizes of `pool` and limits of a batch, as the scheduler sees them.
        device: device of the model and the pool; the inputs of each step are copied to it.
        parameter_count: parameters of the model, from which the work of a step on a CPU is
            estimated; 0: only its attention counts.
        """
        self.model, self.pool, self.attention, self.device = model, pool, attention, device
        self.parameter_count, self.threads = parameter_count, torch.get_num_threads()
        self.token_bytes = bytes_per_token(pool.shapes, pool.keys[0].dtype)
        self._geometry = geometry
        self._previous = PreviousOutput(None, {})
        self.graphs: StepGraphs | None = None
        """Graphs of the layers. None: every step launches its kernels one by one."""

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    def launch(self, batch: Batch) -> PendingStep | Batch:
        """Start a step and return its ticket for `collect`. On a CPU with `steps_ahead` 0, the
        ticket is the batch itself, and `collect` runs the whole step."""
        runs_in_collect = self.device.type == "cpu" and not self._geometry.steps_ahead
        return batch if runs_in_collect else self._start(batch)

    @torch.inference_mode()
    def _start(self, batch: Batch) -> PendingStep:
        start_s = time.perf_counter()
        events = self._create_events()
        if batch.moves:
            self.pool.move(batch.moves)
        graph = None if self.graphs is None else self.graphs.find(batch)
        step = step_inputs.build_inputs(
            batch,
            self.pool.page_size,
            self.device,
            self.model.vocab_size,
            None if graph is None else graph.inputs,
        )
        self._feed(step)
        if events is None:
            torch.set_num_threads(1 if self._is_light(step) else self.threads)
        logits = self.forward(step) if graph is None else graph.run(step)
        samples = [sample for row in batch.rows for sample in row.samples]
        output = None
        self._previous = PreviousOutput(None, {})
        if samples:
            output = draw(logits, samples)
            index_by_row = {row: index for index, row in enumerate(step.sampled_rows)}
            self._previous = PreviousOutput(output.ids, index_by_row)
            output = output.to_host()
        ticket = PendingStep(batch.rows, samples, output, 0.0)
        if events is None:
            ticket.model_s = time.perf_counter() - start_s
        else:
            ticket.start_event, ticket.done_event = events
            ticket.done_event.record()
        return ticket

    def _is_light(self, step: StepInputs) -> bool:
        """Whether a step on a CPU is small enough for a single thread."""
        tokens, context = int(step.row_offsets[-1]), int((step.starts + step.counts).sum())
        work = max(2 * tokens, WEIGHT_READ_COST) * self.parameter_count + context * self.token_bytes
        return work <= SINGLE_THREAD_WORK_MAX

    def forward(self, step: StepInputs) -> Tensor:
        """Run the model: write the step's keys and values to the pool and return its logits
        [S, vocab]."""
        attend = self.attention.bind(step, self.pool)
        states = PooledStates(step, self.pool)
        return self.model(step.tokens, step.positions, attend, step.logit_indices, states)

    @torch.inference_mode()
    def compute_logits(self, batch: Batch) -> Tensor:
        """Run a batch and return the logits [S, vocab] that ids are drawn from, without drawing
        them."""
        return self.forward(
            step_inputs.build_inputs(batch, self.pool.page_size, self.device, self.model.vocab_size)
        )

    def collect(self, ticket: PendingStep | Batch) -> BatchResult:
        if isinstance(ticket, Batch):
            ticket = self._start(ticket)
        if ticket.start_event is not None and ticket.done_event is not None:
            ticket.done_event.synchronize()
            ticket.model_s = ticket.start_event.elapsed_time(ticket.done_event) / 1000
        drawn = ticket.output.to_row_results(ticket.samples) if ticket.output is not None else []
        return BatchResult(assign_to_rows(drawn, ticket.rows), ticket.model_s)

    def is_usable(self) -> bool:
        """Whether CUDA still works: after an illegal access or a failed assertion on the device,
        every later CUDA call of this process fails with the same error."""
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def _feed(self, step: StepInputs) -> None:
        """Copy the ids drawn by the previous step to the inputs of this step's fed rows."""
        if not step.fed_tokens:
            return
        assert self._previous.ids is not None, "a row is fed, but the previous step drew nothing"
        sources = [self._previous.index_by_row[row] for _, row in step.fed_tokens]
        indices = torch.tensor([[token for token, _ in step.fed_tokens], sources])
        indices = step_inputs.upload(indices.numpy(), self.device)
        step.tokens.index_copy_(0, indices[0], self._previous.ids[indices[1]])

    def _create_events(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        if self.device.type != "cuda":
            return None
        start, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        return start, done

"""The device behind the Runner protocol: launch a batch, collect what it drew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from engine.batch import Batch, Drawn, Geometry, Sample, Sampled
from engine.config import BUNDLED, EngineConfig
from engine.device import inputs, kv, weights
from engine.device.attention.base import Backend, StepAttention
from engine.device.attention.reference import Reference
from engine.device.inputs import Step
from engine.device.kv import KVPool
from engine.device.models import rope
from engine.device.models.decoder import SHAPES, Decoder, KVShape, empty
from engine.device.models.layers import Attend
from engine.device.sampling import Draw, draw
from engine.device.weights import Progress
from engine.errors import ModelError

CPU_BATCHED_TOKENS, CUDA_BATCHED_TOKENS = 512, 8192
CPU_FP32_PARAMETERS_MAX = 20_000_000
"""On a CPU, `auto` runs models up to this many parameters in fp32."""


class Model(Protocol):
    """What the runner asks of a model: our own decoder, or one of transformers'."""

    @property
    def kv(self) -> list[KVShape]: ...

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class Loaded(msgspec.Struct, frozen=True):
    """What was loaded, for whoever tells the world. `folder` holds config and tokenizer."""

    folder: str
    model: str
    architecture: str
    device: str
    dtype: str
    load_s: float


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


class TorchRunner:
    """Runs batches on one torch device; called from one thread."""

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        attention: Backend,
        geometry: Geometry,
        device: torch.device,
    ) -> None:
        self.model, self.pool, self.attention, self.device = model, pool, attention, device
        self._geometry = geometry
        self._previous = Previous(None, {})

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Ticket:
        begun = time.perf_counter()
        events = self._events()
        if batch.copies:
            self.pool.copy(batch.copies)
        step = inputs.build(batch, self.pool.page_size, self.device)
        self._feed(step)
        hidden = self.forward(step)
        samples = [row.sample for row in batch.rows if row.sample is not None]
        result = None
        self._previous = Previous(None, {})
        if samples:
            if step.last is not None:
                hidden = hidden.index_select(0, step.last)
            result = draw(self.model.logits(hidden), samples)
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

    def forward(self, step: Step) -> Tensor:
        """The hidden states [T, hidden] of a step, its keys and values written to the pool."""
        attend = _Attend(step, self.pool, self.attention.prepare(step, self.pool))
        return self.model.hidden(step.tokens, step.positions, attend)

    def collect(self, ticket: Ticket) -> Sampled:
        if ticket.begun is not None and ticket.done is not None:
            ticket.done.synchronize()
            ticket.model_s = ticket.begun.elapsed_time(ticket.done) / 1000
        drawn: list[Drawn | None] = [None] * ticket.rows
        if ticket.draw is not None:
            answers = ticket.draw.answers(ticket.samples)
            for row, answer in zip(ticket.sampled, answers, strict=True):
                drawn[row] = answer
        return Sampled(drawn, ticket.model_s)

    def _feed(self, step: Step) -> None:
        """Put the ids drawn by the previous step where this step's fed rows want them."""
        if not step.fed:
            return
        assert self._previous.ids is not None, "a row is fed, and the step before drew nothing"
        places = [self._previous.place[row] for _, row in step.fed]
        where = torch.tensor([[token for token, _ in step.fed], places])
        where = inputs.upload(where.numpy(), self.device)
        step.tokens.index_copy_(0, where[0], self._previous.ids[where[1]])

    def _events(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        if self.device.type != "cuda":
            return None
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        return begun, done


class _Attend:
    """Writes a step's keys and values, then attends: what a layer calls."""

    def __init__(self, step: Step, pool: KVPool, attention: StepAttention) -> None:
        self.pool, self.attention = pool, attention
        heads = {shape.heads for shape in pool.shapes}
        lines = {count: pool.lines(step.pages, step.slots, count) for count in heads}
        self.lines = [lines[shape.heads] for shape in pool.shapes]

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        self.pool.write(layer, self.lines[layer], key, value)
        return self.attention(layer, query, scale, window)


def build(config: EngineConfig, progress: Progress) -> tuple[TorchRunner, Loaded]:
    """Load a model and make its runner. `progress(what, fraction)` is called as it goes.

    Raises ModelError, in one line, for whatever is wrong with the model or with the bounds.
    """
    begun = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = _device(config)
    folder = weights.resolve(config.model, config.revision, progress)
    found = weights.read_config(folder)
    architecture = (found.architectures or [type(found).__name__])[0]
    if getattr(found, "quantization_config", None):
        raise ModelError(f"{folder}: quantized checkpoints are not supported")
    dtype = _dtype(config, found, device)
    if architecture not in SHAPES:
        raise ModelError(f"{folder}: architecture {architecture} is not supported")
    shape = SHAPES[architecture](found)
    limit = rope.longest(found)
    with torch.inference_mode():
        like = empty(dtype, device)
        model = Decoder(shape, found, config.max_model_len or limit, like)
        weights.fill(folder, model.slots(), progress)
        token_bytes = kv.bytes_per_token(model.kv, dtype)
        pages, length = kv.size(config, token_bytes, limit, device)
        pool = KVPool(model.kv, pages, config.block_size, like)
    on_cuda = device.type == "cuda"
    geometry = Geometry(
        pages=pages,
        page_size=config.block_size,
        max_model_len=length,
        vocab_size=shape.vocab,
        batched_tokens=config.max_num_batched_tokens
        or (CUDA_BATCHED_TOKENS if on_cuda else CPU_BATCHED_TOKENS),
        steps_ahead=config.steps_ahead if config.steps_ahead is not None else int(on_cuda),
    )
    runner = TorchRunner(model, pool, Reference(), geometry, device)
    name = config.model if config.model == BUNDLED else str(config.model).rstrip("/")
    loaded = Loaded(
        folder=str(folder),
        model=name,
        architecture=architecture,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        load_s=time.perf_counter() - begun,
    )
    return runner, loaded


def _device(config: EngineConfig) -> torch.device:
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ModelError("device cuda was asked for, and torch finds no CUDA device")
    return torch.device("cuda" if available and config.device != "cpu" else "cpu")


def _dtype(config: EngineConfig, found: object, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    own = getattr(found, "dtype", None) or torch.float32
    if device.type == "cuda":
        return own
    return torch.float32

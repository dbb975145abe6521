# pyright: basic
"""The device behind the Runner protocol: launch a batch, collect what it drew."""

from __future__ import annotations

import ctypes
import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from continuo.engine.batch import Batch, Drawn, Geometry, Runner, Sample, Sampled
from continuo.engine.config import EngineConfig
from continuo.engine.device import kv_pool, step_inputs, weights
from continuo.engine.device.attention.backend import Backend
from continuo.engine.device.attention.sdpa_backend import Reference
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.models import rope
from continuo.engine.device.models.layers import Attend
from continuo.engine.device.models.llama_decoder import SHAPES, Decoder, KVShape, empty
from continuo.engine.device.sampling import Draw, draw
from continuo.engine.device.step_inputs import Step
from continuo.engine.device.weights import Progress
from continuo.engine.errors import ModelError

CPU_BATCHED_TOKENS, CUDA_BATCHED_TOKENS = 512, 8192
CPU_FP32_PARAMETERS_MAX = 20_000_000
"""On a CPU, `auto` runs models up to this many parameters in fp32."""
LIGHT_WORK, WEIGHT_WORK = 300_000_000, 8
"""Multiplications and additions, and bytes of KV, up to which a step runs on one CPU thread: some
ten milliseconds. Several threads wait for one another after every operation, and wherever another
process wants a core too, that costs many times what they save. Fetching a weight from memory
counts as eight."""


class Model(Protocol):
    """What the runner asks of a model: our own decoder, or one of transformers'."""

    kv: list[KVShape]
    """What each layer keeps per token."""
    vocab: int

    def __call__(
        self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor | None
    ) -> Tensor:
        """tokens, positions [T] -> logits [S, vocab] of the `wanted` tokens (None: of all)."""
        ...


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
        self.token_bytes = kv_pool.bytes_per_token(pool.shapes, pool.keys[0].dtype)
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


def build(config: EngineConfig, progress: Progress) -> tuple[TorchRunner, Loaded]:
    """Load a model and make its runner. `progress(what, fraction)` is called as it goes.

    Raises ModelError, in one line, for whatever is wrong with the model or with the bounds.
    """
    begun = time.perf_counter()
    _check_bounds(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = _device(config)
    if device.type == "cpu":
        _keep_freed_memory()
    folder = weights.resolve(config.model, config.revision, progress)
    found = weights.read_config(folder)
    stored = weights.stored(folder)
    dtype = _dtype(config, stored, device)
    with torch.inference_mode():
        model, limit = _load(config, folder, found, empty(dtype, device), progress)
        token_bytes = kv_pool.bytes_per_token(model.kv, dtype)
        pages, length = kv_pool.size(config, token_bytes, limit, device)
        spare = kv_pool.host_pages(config, token_bytes)
        pool = _pool(model, pages, config.block_size, empty(dtype, device), spare)
    geometry = _geometry(config, device, pages, length, model.vocab, spare)
    loaded = Loaded(
        folder=str(folder),
        model=config.model,
        architecture=(found.architectures or [found.model_type])[0],
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        load_s=time.perf_counter() - begun,
    )
    made = (model, pool, _attention(device), geometry, device, stored.parameters)
    return _native(*made) or TorchRunner(*made), loaded


def _native(model: Model, pool: KVPool, *others: Any) -> TorchRunner | None:
    """Our own C, where it does this model and no step runs ahead."""
    from continuo.engine.device.native.native_decoder import NativeDecoder
    from continuo.engine.device.native.native_runner import NativeRunner

    geometry: Geometry = others[1]
    threads = torch.get_num_threads()
    decoder = None if geometry.steps_ahead else NativeDecoder.of(model, pool, threads)
    return None if decoder is None else NativeRunner(decoder, model, pool, *others)


def _pool(model: Model, pages: int, page_size: int, like: Tensor, host_pages: int) -> KVPool:
    try:
        return KVPool(model.kv, pages, page_size, like, host_pages)
    except RuntimeError as error:
        raise ModelError(
            f"no memory for {pages:,} KV pages on the device and {host_pages:,} on the host"
        ) from error


def _check_bounds(config: EngineConfig) -> None:
    least = {
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "num_gpu_blocks_override": config.num_gpu_blocks_override,
        "threads": config.threads,
    }
    for name, value in least.items():
        if value is not None and value < 1:
            raise ModelError(f"{name} is {value}; it must be at least 1")
    if config.steps_ahead not in (None, 0, 1):
        raise ModelError(f"steps_ahead is {config.steps_ahead}; it must be 0 or 1")


def _load(
    config: EngineConfig, folder: Path, found: Any, like: Tensor, progress: Progress
) -> tuple[Model, int]:
    """The model, and the longest context it can have: in tokens."""
    mapping = SHAPES.get((found.architectures or [""])[0])
    if mapping is not None:
        limit = rope.longest(found)
        model = Decoder(mapping(found), found, min(config.max_model_len or limit, limit), like)
        weights.fill(folder, model.slots(), progress)
        return model, limit
    from continuo.engine.device.models import (
        transformers_model,  # transformers' model code is slow to import
    )

    progress("loading weights", 0.0)
    model = transformers_model.load(folder, found, like.dtype, like.device)
    limit = model.limit() or config.max_model_len
    if limit is None:
        raise ModelError(f"{folder}: config.json has no context length; give max_model_len")
    return model, limit


def _geometry(
    config: EngineConfig,
    device: torch.device,
    pages: int,
    length: int,
    vocab: int,
    host_pages: int,
) -> Geometry:
    on_cuda = device.type == "cuda"
    tokens = CUDA_BATCHED_TOKENS if on_cuda else CPU_BATCHED_TOKENS
    return Geometry(
        pages=pages,
        page_size=config.block_size,
        max_model_len=length,
        vocab_size=vocab,
        batched_tokens=config.max_num_batched_tokens or tokens,
        steps_ahead=int(on_cuda) if config.steps_ahead is None else config.steps_ahead,
        host_pages=host_pages,
    )


def _keep_freed_memory() -> None:
    """Where the C library is glibc: do not give back what a step frees. It would be faulted in
    again, page by page, by the next one: milliseconds for a few megabytes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 1 << 30)
    mallopt(mmap_threshold, 32 << 20)


def _attention(device: torch.device) -> Backend:
    """Triton's kernels on CUDA, whose torch brings triton along; else the reference."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return Reference()
    from continuo.engine.device.attention.triton_backend import PagedTriton

    return PagedTriton(4 * torch.cuda.get_device_properties(device).multi_processor_count)


def _device(config: EngineConfig) -> torch.device:
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ModelError("device cuda was asked for, and torch finds no CUDA device")
    return torch.device("cuda" if available and config.device != "cpu" else "cpu")


def _dtype(config: EngineConfig, stored: weights.Stored, device: torch.device) -> torch.dtype:
    """What `auto` means: the checkpoint's own dtype on CUDA. On a CPU fp32 for small models, where
    it costs no more and ids are the same whatever the batch; bf16 for all others, where weights
    are what a step reads; never fp16, whose products are many times slower there."""
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    if device.type == "cuda":
        return stored.dtype
    small = stored.parameters <= CPU_FP32_PARAMETERS_MAX
    return torch.float32 if small else torch.bfloat16

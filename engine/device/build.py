# pyright: basic
"""Load a model and build the runner that fits it and the device."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from continuo.engine.architectures.config import read_config
from continuo.engine.architectures.families import read_shape
from continuo.engine.architectures.shapes import DecoderShape, MixtureShape
from continuo.engine.available_memory import available_memory_bytes
from continuo.engine.batch import Geometry
from continuo.engine.config import (
    CPU_BATCHED_TOKENS,
    CPU_FP32_PARAMETERS_MAX,
    CUDA_BATCHED_TOKENS,
    EngineConfig,
)
from continuo.engine.device import weights
from continuo.engine.device.attention.backend import AttentionBackend
from continuo.engine.device.attention.sdpa_backend import ReferenceBackend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.kv_sizing import default_pool_bytes, measure_sessions
from continuo.engine.device.model import CausalLM
from continuo.engine.device.models import rope
from continuo.engine.device.models.decoder import Decoder, empty_tensor
from continuo.engine.device.models.operations import PLAIN, Operations
from continuo.engine.device.native.native_decoder import NativeDecoder
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.device.quantization import MADE_FORMATS
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.warm_up import warm_up
from continuo.engine.device.weights import ProgressCallback
from continuo.engine.errors import ModelError
from continuo.engine.memory_plan import plan_memory

if TYPE_CHECKING:
    from continuo.engine.device.step_graphs import StepGraphs

log = logging.getLogger(__name__)


class LoadedModel(msgspec.Struct, frozen=True):
    """Description of a loaded model, for logs and status pages."""

    folder: str
    """The checkpoint folder, with config and tokenizer."""
    model: str
    architecture: str
    device: str
    dtype: str
    load_s: float


def build_runner(
    config: EngineConfig, progress: ProgressCallback
) -> tuple[TorchRunner, LoadedModel]:
    """Load a model and build its runner. `progress(what, fraction)` is called while loading.

    Raises ModelError, with a message of one line, for an unusable model or an invalid option.
    """
    start_s = time.perf_counter()
    _check_bounds(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = _choose_device(config)
    folder = weights.resolve(config.model, config.revision, progress)
    model_config = read_config(folder)
    checkpoint = weights.read_checkpoint_info(folder)
    dtype = _choose_dtype(config, checkpoint, device)
    if config.quantization is not None and device.type != "cpu":
        raise ModelError(
            f"quantization is {config.quantization}, which is made for CPUs alone; the device is "
            f"{device.type}"
        )
    with torch.inference_mode():
        like = empty_tensor(dtype, device)
        model, limit = _load_model(config, folder, model_config, like, progress)
        geometry = _build_geometry(config, model, dtype, limit, device)
        pool = _build_pool(model, geometry, like)
    _warn_of_short_sessions(config, geometry, limit)
    if geometry.windows or geometry.state_slots:  # the memory is shared out
        log.info("KV memory: %s", pool.describe())
    loaded = LoadedModel(
        folder=str(folder),
        model=config.model,
        architecture=(model_config.architectures or [model_config.model_type])[0],
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        load_s=time.perf_counter() - start_s,
    )
    parts = (model, pool, choose_backend(device), geometry, device, checkpoint.parameter_count)
    runner = _try_build_native(*parts) or TorchRunner(*parts)
    if device.type == "cpu":
        _keep_freed_memory_from_now_on()
    else:
        warm_up(runner, progress)
        runner.graphs = capture_graphs(runner, progress)
    return runner, loaded


def capture_graphs(runner: TorchRunner, progress: ProgressCallback) -> StepGraphs | None:
    """Capture the graphs of a model on CUDA. Returns None if there are none."""
    if not _has_triton(runner.device):
        return None
    # triton is installed only where torch supports CUDA.
    from continuo.engine.device import step_graphs  # noqa: PLC0415

    batched_tokens = runner.geometry.batched_tokens
    return step_graphs.capture_graphs(
        runner.model, runner.pool, runner.attention, batched_tokens, progress
    )


def _try_build_native(model: CausalLM, pool: KVPool, *others: Any) -> TorchRunner | None:
    """Build the runner of the native decoder. `others`: further arguments of `TorchRunner`.

    Returns None if the decoder does not support the model, or if `steps_ahead` is not 0.
    """
    geometry: Geometry = others[1]
    threads = torch.get_num_threads()
    decoder = None if geometry.steps_ahead else NativeDecoder.try_create(model, pool, threads)
    return None if decoder is None else NativeRunner(decoder, model, pool, *others)


def _build_pool(model: CausalLM, geometry: Geometry, like: Tensor) -> KVPool:
    """Build the pool. Raises ModelError if the memory does not hold it once all of it is used."""
    refusal = ModelError(
        f"no memory for {geometry.pages:,} KV pages on the device and "
        f"{geometry.host_pages:,} on the host"
    )
    try:
        pool = KVPool(
            model.memory,
            geometry.pages,
            geometry.page_size,
            like,
            geometry.host_pages,
            geometry.windows,
            geometry.state_slots,
            geometry.host_state_slots,
        )
    except (RuntimeError, OSError, OverflowError) as error:
        raise refusal from error
    available = available_memory_bytes()
    if available is not None and pool.main_memory_bytes > available:
        raise refusal
    return pool


def _check_bounds(config: EngineConfig) -> None:
    bounds = {
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "num_gpu_blocks_override": config.num_gpu_blocks_override,
        "threads": config.threads,
    }
    for name, value in bounds.items():
        if value is not None and value < 1:
            raise ModelError(f"{name} is {value}; it must be at least 1")
    if config.steps_ahead not in (None, 0, 1):
        raise ModelError(f"steps_ahead is {config.steps_ahead}; it must be 0 or 1")


def _load_model(
    config: EngineConfig, folder: Path, model_config: Any, like: Tensor, progress: ProgressCallback
) -> tuple[CausalLM, int]:
    """Load the model with the dtype and device of `like`. Returns the model and its longest
    context, in tokens."""
    tensors = weights.list_tensors(folder)
    shape = read_shape(model_config, tensors)
    if shape is not None:
        text_config = model_config.get_text_config()
        limit = rope.context_limit(text_config)
        length = min(config.max_model_len or limit, limit)
        _check_quantizable(config, shape)
        model = Decoder(shape, text_config, length, like, choose_operations(like.device))
        weights.load_weights(
            folder,
            model.weight_targets(tensors),
            progress,
            keeps_quantized=like.device.type == "cpu",
            quantize_to=MADE_FORMATS.get(config.quantization or ""),
        )
        return model, limit
    if config.quantization is not None:
        architecture = (model_config.architectures or [model_config.model_type])[0]
        raise ModelError(
            f"quantization is {config.quantization}, but {architecture} runs through transformers, "
            f"which needs its weights as they are"
        )
    # transformers' model code is slow to import.
    from continuo.engine.device.models import transformers_model  # noqa: PLC0415

    progress("loading weights", 0.0)
    model = transformers_model.load(folder, model_config, like.dtype, like.device)
    limit = model.context_limit() or config.max_model_len
    if limit is None:
        raise ModelError(f"{folder}: config.json has no context length; set max_model_len")
    return model, limit


def _check_quantizable(config: EngineConfig, shape: DecoderShape) -> None:
    has_mixture = any(isinstance(layer.mlp, MixtureShape) for layer in shape.layers)
    if config.quantization is not None and has_mixture:
        raise ModelError(
            f"quantization is {config.quantization}, but mixtures of experts are not quantized"
        )


def _build_geometry(
    config: EngineConfig, model: CausalLM, dtype: torch.dtype, limit: int, device: torch.device
) -> Geometry:
    """Choose the sizes of all pools. `limit`: the longest context of the model, in tokens."""
    on_cuda = device.type == "cuda"
    tokens = CUDA_BATCHED_TOKENS if on_cuda else CPU_BATCHED_TOKENS
    batched_tokens = config.max_num_batched_tokens or tokens
    memory = measure_sessions(model.memory, dtype)
    plan = plan_memory(config, memory, limit, default_pool_bytes(device), batched_tokens)
    return Geometry(
        pages=plan.pages,
        page_size=config.block_size,
        max_model_len=plan.max_model_len,
        vocab_size=model.vocab_size,
        batched_tokens=batched_tokens,
        steps_ahead=int(on_cuda) if config.steps_ahead is None else config.steps_ahead,
        host_pages=plan.host_pages,
        windows=plan.windows,
        state_slots=plan.state_slots,
        host_state_slots=plan.host_state_slots,
        state_bytes=plan.state_bytes,
        has_full_layers=plan.has_full_layers,
    )


def _warn_of_short_sessions(config: EngineConfig, geometry: Geometry, limit: int) -> None:
    """Log that the KV pool, rather than the model, limits the length of a session."""
    if config.max_model_len is None and geometry.max_model_len < limit:
        log.warning(
            "max_model_len is %s, not the model's %s: the KV pool of %s pages holds no longer "
            "session; kv_cache_memory_bytes sets its size, and max_model_len=%s makes it large "
            "enough for one session",
            *map("{:,}".format, (geometry.max_model_len, limit, geometry.pages)),
            limit,
        )


def _keep_freed_memory_from_now_on() -> None:
    """Make glibc return the memory that was freed while loading to the operating system, and keep
    what is freed later.

    Otherwise the next step would cause a page fault for each page that it allocates again, which
    takes milliseconds for a few megabytes. Does nothing with other C libraries.
    """
    try:
        libc = ctypes.CDLL(None)
        malloc_trim, mallopt = libc.malloc_trim, libc.mallopt
    except (OSError, AttributeError):
        return
    malloc_trim(0)
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 1 << 30)
    mallopt(mmap_threshold, 32 << 20)


def _has_triton(device: torch.device) -> bool:
    """Whether kernels are compiled for the device: a CUDA device, if triton is installed (torch for
    CUDA installs it)."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def choose_backend(device: torch.device) -> AttentionBackend:
    """Choose the Triton kernels where they are compiled, else the reference backend."""
    if not _has_triton(device):
        return ReferenceBackend()
    # triton is installed only where torch supports CUDA.
    from continuo.engine.device.attention import triton_backend  # noqa: PLC0415

    programs = 4 * torch.cuda.get_device_properties(device).multi_processor_count
    return triton_backend.TritonBackend(programs, triton_backend.measure_on_cuda)


def choose_operations(device: torch.device) -> Operations:
    """Choose the fused operations of our decoder: Triton kernels where they are compiled, else
    torch."""
    if not _has_triton(device):
        return PLAIN
    # triton is installed only where torch supports CUDA.
    from continuo.engine.device.kernels.layer_kernels import TritonOperations  # noqa: PLC0415

    return TritonOperations()


def _choose_device(config: EngineConfig) -> torch.device:
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ModelError("device is cuda, but torch finds no CUDA device")
    return torch.device("cuda" if available and config.device != "cpu" else "cpu")


def _choose_dtype(
    config: EngineConfig, checkpoint: weights.CheckpointInfo, device: torch.device
) -> torch.dtype:
    """Return the configured dtype; `auto` is the checkpoint's dtype on CUDA.

    On a CPU, `auto` is fp32 for small models, where fp32 is as fast and makes the sampled ids
    independent of the other rows of a batch, and bf16 for all others, whose speed is limited by
    reading weights from memory. It is never fp16, which is many times slower on CPUs.
    """
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    if device.type == "cuda":
        return checkpoint.dtype
    small = checkpoint.parameter_count <= CPU_FP32_PARAMETERS_MAX
    return torch.float32 if small else torch.bfloat16

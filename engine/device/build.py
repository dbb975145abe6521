# pyright: basic
"""Load a model and build the runner that fits it and the device."""

from __future__ import annotations

import ctypes
import importlib.util
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from continuo.engine.batch import Geometry
from continuo.engine.config import EngineConfig
from continuo.engine.device import weights
from continuo.engine.device.attention.backend import AttentionBackend
from continuo.engine.device.attention.sdpa_backend import ReferenceBackend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.kv_sizing import bytes_per_token, count_host_pages, size_pool
from continuo.engine.device.model import CausalLM
from continuo.engine.device.models import rope
from continuo.engine.device.models.llama_decoder import ARCHITECTURES, LlamaDecoder, empty_tensor
from continuo.engine.device.native.native_decoder import NativeDecoder
from continuo.engine.device.native.native_runner import NativeRunner
from continuo.engine.device.runner import TorchRunner
from continuo.engine.device.weights import ProgressCallback
from continuo.engine.errors import ModelError

CPU_BATCHED_TOKENS, CUDA_BATCHED_TOKENS = 512, 8192


CPU_FP32_PARAMETERS_MAX = 20_000_000
"""Size of the largest model, in parameters, that `--dtype auto` runs in fp32 on a CPU."""


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
    if device.type == "cpu":
        _disable_malloc_trim()
    folder = weights.resolve(config.model, config.revision, progress)
    model_config = weights.read_config(folder)
    checkpoint = weights.read_checkpoint_info(folder)
    dtype = _choose_dtype(config, checkpoint, device)
    with torch.inference_mode():
        like = empty_tensor(dtype, device)
        model, limit = _load_model(config, folder, model_config, like, progress)
        token_bytes = bytes_per_token(model.kv_shapes, dtype)
        pages, length = size_pool(config, token_bytes, limit, device)
        host_pages = count_host_pages(config, token_bytes)
        pool = _build_pool(model, pages, config.block_size, like, host_pages)
    geometry = _build_geometry(config, device, pages, length, model.vocab_size, host_pages)
    loaded = LoadedModel(
        folder=str(folder),
        model=config.model,
        architecture=(model_config.architectures or [model_config.model_type])[0],
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        load_s=time.perf_counter() - start_s,
    )
    parts = (model, pool, _choose_backend(device), geometry, device, checkpoint.parameter_count)
    return _try_build_native(*parts) or TorchRunner(*parts), loaded


def _try_build_native(model: CausalLM, pool: KVPool, *others: Any) -> TorchRunner | None:
    """Build the runner of the native decoder. `others`: further arguments of `TorchRunner`.

    Returns None if the decoder does not support the model, or if `steps_ahead` is not 0.
    """
    geometry: Geometry = others[1]
    threads = torch.get_num_threads()
    decoder = None if geometry.steps_ahead else NativeDecoder.try_create(model, pool, threads)
    return None if decoder is None else NativeRunner(decoder, model, pool, *others)


def _build_pool(
    model: CausalLM, pages: int, page_size: int, like: Tensor, host_pages: int
) -> KVPool:
    try:
        return KVPool(model.kv_shapes, pages, page_size, like, host_pages)
    except RuntimeError as error:
        raise ModelError(
            f"no memory for {pages:,} KV pages on the device and {host_pages:,} on the host"
        ) from error


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
    to_shape = ARCHITECTURES.get((model_config.architectures or [""])[0])
    if to_shape is not None:
        limit = rope.context_limit(model_config)
        length = min(config.max_model_len or limit, limit)
        model = LlamaDecoder(to_shape(model_config), model_config, length, like)
        weights.load_weights(folder, model.weight_targets(), progress)
        return model, limit
    # transformers' model code is slow to import.
    from continuo.engine.device.models import transformers_model  # noqa: PLC0415

    progress("loading weights", 0.0)
    model = transformers_model.load(folder, model_config, like.dtype, like.device)
    limit = model.context_limit() or config.max_model_len
    if limit is None:
        raise ModelError(f"{folder}: config.json has no context length; set max_model_len")
    return model, limit


def _build_geometry(
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


def _disable_malloc_trim() -> None:
    """Make glibc keep freed memory instead of returning it to the operating system.

    Otherwise the next step would cause a page fault for each page that it allocates again, which
    takes milliseconds for a few megabytes. Does nothing with other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 1 << 30)
    mallopt(mmap_threshold, 32 << 20)


def _choose_backend(device: torch.device) -> AttentionBackend:
    """Choose the Triton kernels on CUDA if triton is installed (torch for CUDA installs it), else
    the reference backend."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return ReferenceBackend()
    # triton is installed only where torch supports CUDA.
    from continuo.engine.device.attention.triton_backend import TritonBackend  # noqa: PLC0415

    return TritonBackend(4 * torch.cuda.get_device_properties(device).multi_processor_count)


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

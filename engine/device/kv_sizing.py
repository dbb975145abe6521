# pyright: basic
"""Compute the number of KV pages for the device and for the host tier."""

from __future__ import annotations

from pathlib import Path

import torch

from continuo.engine.config import EngineConfig
from continuo.engine.device.model import KVShape
from continuo.engine.errors import ModelError

CPU_MEMORY_FRACTION, CPU_POOL_BYTES_MAX = 0.25, 1 << 30
"""Default size of the KV pool on a CPU: this fraction of the available memory, but at most this
many bytes."""


CUDA_MEMORY_FRACTION = 0.85
"""Default size of the KV pool on CUDA: this fraction of the device's free memory."""


MEMINFO = Path("/proc/meminfo")


def count_host_pages(config: EngineConfig, token_bytes: int) -> int:
    """Count the pages of a host tier of `kv_offloading_size` GiB. Raises ModelError if the size is
    negative."""
    if config.kv_offloading_size < 0:
        raise ModelError(
            f"kv_offloading_size is {config.kv_offloading_size}; it must be at least 0"
        )
    return int(config.kv_offloading_size * (1 << 30)) // (token_bytes * config.block_size)


def bytes_per_token(shapes: list[KVShape], dtype: torch.dtype) -> int:
    return sum(s.heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize


def size_pool(
    config: EngineConfig, token_bytes: int, limit: int, device: torch.device
) -> tuple[int, int]:
    """Choose (number of device pages, max_model_len). `limit`: the longest context of the model, in
    tokens.

    The pool always holds at least one session of max_model_len tokens. If `max_model_len` is
    configured, a pool of default size grows until it holds such a session. Otherwise max_model_len
    is `limit`, or the number of tokens in the pool if that is less.

    Raises ModelError if `max_model_len` exceeds `limit`, or if a pool of configured size is too
    small.
    """
    requested = config.max_model_len
    if requested is not None and requested > limit:
        raise ModelError(f"max_model_len {requested} is more than the model's {limit} tokens")
    longest = requested or limit
    page = config.block_size
    if config.num_gpu_blocks_override is not None:
        pages = config.num_gpu_blocks_override
    elif config.kv_cache_memory_bytes is not None:
        pages = config.kv_cache_memory_bytes // (token_bytes * page)
    else:
        useful = _count_pages(longest, page) * config.max_num_seqs
        pages = min(useful, _default_pool_bytes(device) // (token_bytes * page))
        pages = max(pages, _count_pages(requested or 1, page))
    if pages < 1 or (requested is not None and pages < _count_pages(requested, page)):
        raise ModelError(
            f"a KV pool of {pages} pages of {page} tokens ({token_bytes} bytes each) "
            f"does not hold one session of max_model_len {requested or 1}"
        )
    return pages, min(longest, pages * page)


def _count_pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def _default_pool_bytes(device: torch.device) -> int:
    """Return the size, in bytes, of a pool whose size is not configured."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_MEMORY_FRACTION)
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return CPU_POOL_BYTES_MAX
    return min(CPU_POOL_BYTES_MAX, int(free * CPU_MEMORY_FRACTION))

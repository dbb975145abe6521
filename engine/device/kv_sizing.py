# pyright: basic
"""The memory that the layers of a model take for a session, and the default size of the KV pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from continuo.engine.available_memory import cpu_pool_bytes
from continuo.engine.device.model import KVShape, LayerMemory
from continuo.engine.memory_plan import SessionMemory

CUDA_MEMORY_FRACTION = 0.85
"""Default size of the KV pool on CUDA: this fraction of the device's free memory."""


def measure_sessions(memory: Sequence[LayerMemory], dtype: torch.dtype) -> SessionMemory:
    """Return what sessions take in layers with this memory."""
    shapes: dict[int | None, list[KVShape]] = {}
    for layer in memory:
        if layer.kv is not None:
            shapes.setdefault(layer.window, []).append(layer.kv)
    token_bytes = {window: bytes_per_token(kv, dtype) for window, kv in shapes.items()}
    return SessionMemory(token_bytes, bytes_per_state(memory, dtype))


def bytes_per_token(shapes: Sequence[KVShape], dtype: torch.dtype) -> int:
    return sum(s.heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize


def bytes_per_state(memory: Sequence[LayerMemory], dtype: torch.dtype) -> int:
    """Return the bytes of one state slot."""
    return sum(
        torch.Size(x.shape).numel() * (x.dtype or dtype).itemsize
        for layer in memory
        for x in layer.state
    )


def default_pool_bytes(device: torch.device) -> int:
    """Return the size, in bytes, of a pool whose size is not configured."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_MEMORY_FRACTION)
    return cpu_pool_bytes()

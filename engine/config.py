"""What an engine is built from. Frozen; every bound has its unit in its name or its comment."""

from typing import Literal

import msgspec

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]

BUNDLED_MODEL = "demo"
"""The `model` that names the checkpoint shipped inside the package."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: str = BUNDLED_MODEL
    """A folder in the Hugging Face layout, a hub id, or `demo`."""
    revision: str | None = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    max_model_len: int | None = None
    """Tokens in one session at most; the model's own limit when None."""
    block_size: int = 16
    """Tokens in one KV page."""
    num_gpu_blocks_override: int | None = None
    """KV pages in the pool; else from `kv_cache_memory_bytes`."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV pool; None: a share of the free device memory."""
    kv_offloading_size: float = 0.0
    """GiB of host memory for the pages of idle sessions; 0: none, they are computed again."""
    max_num_seqs: int = 64
    """Rows in one step at most."""
    max_num_batched_tokens: int | None = None
    """Tokens in one step at most; None: 512 on a CPU, 8,192 on a GPU."""
    threads: int | None = None
    """CPU threads of the device; None: every core."""
    steps_ahead: int | None = None
    """Steps launched beyond the one awaited: 0 or 1. None: 1 on a GPU, 0 on a CPU."""
    detach_grace_s: float = 30.0
    """How long turns go on after their front was lost; then they are paused."""
    detach_keep_s: float = 900.0
    """How long sessions stay after their front was lost; then they are closed."""
    audit_every_step: bool = False
    """Prove after every step that each page has one owner (tests)."""


class ListenerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine takes fronts of other processes."""

    fd: int
    """A listening socket the process was given."""
    secret_file: str | None = None
    """What fronts must know; None: whoever connects is one (loopback only)."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is told when it starts."""

    engine: EngineConfig
    parent: int
    """A connected socket the process was given; when it is closed, the process ends."""
    recorder: int
    """A descriptor of the memory of its flight recorder."""
    listening: ListenerConfig | None = None

"""Configuration of an engine process. Every bound has its unit in its name or its comment."""

from typing import Literal

import msgspec

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]

BUNDLED_MODEL = "demo"
"""Value of `EngineConfig.model` that selects the checkpoint shipped inside the package."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: str = BUNDLED_MODEL
    """A folder in the Hugging Face layout, a hub id, or `demo` (BUNDLED_MODEL)."""
    revision: str | None = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    max_model_len: int | None = None
    """Maximum tokens of one session; None: the model's own limit."""
    block_size: int = 16
    """Tokens in one KV page."""
    num_gpu_blocks_override: int | None = None
    """KV pages in the pool; None: computed from `kv_cache_memory_bytes`."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV pool; None: a share of the free device memory."""
    kv_offloading_size: float = 0.0
    """GiB of host memory for the pages of idle sessions; 0: none, evicted KV is recomputed."""
    max_num_seqs: int = 64
    """Maximum rows, and thus sequences, in one step."""
    max_num_batched_tokens: int | None = None
    """Maximum tokens in one step; None: 512 on a CPU, 8,192 on a GPU."""
    threads: int | None = None
    """CPU threads that compute a step; None: one per core."""
    steps_ahead: int | None = None
    """Steps launched while the result of an earlier one is awaited: 0 or 1. None: 1 on a GPU, 0 on
    a CPU."""
    detach_grace_s: float = 30.0
    """Seconds for which turns continue after their client disconnects; then they are paused."""
    detach_keep_s: float = 900.0
    """Seconds for which sessions are kept after their client disconnects; then they are closed."""
    audit_every_step: bool = False
    """Check the invariants of the KV cache after every step; for tests."""


class ListenerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Listening socket on which an engine process accepts gateways other than its parent."""

    fd: int
    """Inherited descriptor of a listening socket."""
    secret_file: str | None = None
    """File with the secret shared with the gateways; None: every connection is accepted (loopback
    only)."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Command-line argument of an engine process, encoded as JSON."""

    engine: EngineConfig
    parent: int
    """Inherited descriptor of a socket to the parent process; the engine process exits when the
    parent closes its end."""
    recorder: int
    """Inherited descriptor of the flight recorder's memory."""
    listening: ListenerConfig | None = None

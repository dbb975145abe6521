"""Configuration of an engine process. Every bound has its unit in its name or its comment."""

from typing import Annotated, Literal

import msgspec

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["int8", "int4"]
Device = Literal["auto", "cpu", "cuda"]
LogFormat = Literal["console", "json"]

BUNDLED_MODEL = "demo"
"""Value of `EngineConfig.model` that selects the checkpoint shipped inside the package."""

PAGE_TOKENS = 16
"""Default of `EngineConfig.block_size`."""

CPU_BATCHED_TOKENS, CUDA_BATCHED_TOKENS = 512, 8192
"""Default of `EngineConfig.max_num_batched_tokens`."""

CPU_FP32_PARAMETERS_MAX = 20_000_000
"""Size of the largest model, in parameters, that `--dtype auto` runs in fp32 on a CPU."""

NGRAM_TOKENS = 5
"""Tokens of an n-gram if neither its shortest nor its longest length is given, as in vLLM."""


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding, with vLLM's names."""

    method: Literal["ngram"]
    """`ngram`: drafts repeat what followed the last tokens earlier in the same session."""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=32)]
    """Maximum drafts in a row of a step."""
    prompt_lookup_max: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    """Tokens of the longest n-gram that is looked up; None: `prompt_lookup_min`, else 5."""
    prompt_lookup_min: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    """Tokens of the shortest one; None: `prompt_lookup_max`, else 5."""

    def __post_init__(self) -> None:
        if self.shortest_ngram > self.longest_ngram:
            raise ValueError(
                f"prompt_lookup_min is {self.shortest_ngram}; it must be at most "
                f"prompt_lookup_max, {self.longest_ngram}"
            )

    @property
    def longest_ngram(self) -> int:
        return self.prompt_lookup_max or self.prompt_lookup_min or NGRAM_TOKENS

    @property
    def shortest_ngram(self) -> int:
        return self.prompt_lookup_min or self.prompt_lookup_max or NGRAM_TOKENS


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: str = BUNDLED_MODEL
    """A folder in the Hugging Face layout, a GGUF file, a hub id, or `demo` (BUNDLED_MODEL)."""
    revision: str | None = None
    engine_url: str | None = None
    """URL of a server that computes the model in place of this engine: vLLM or llama-server. None:
    this engine computes."""
    engine_api_key_file: str | None = None
    """File with the API key of that server; None: none is sent."""
    dtype: Dtype = "auto"
    quantization: Quantization | None = None
    """Format to which weights are quantized at load, on a CPU; None: that of the checkpoint."""
    device: Device = "auto"
    max_model_len: int | None = None
    """Maximum tokens of one session; None: the model's own limit."""
    block_size: int = PAGE_TOKENS
    """Tokens in one KV page."""
    num_gpu_blocks_override: int | None = None
    """KV pages in the pool; None: computed from `kv_cache_memory_bytes`."""
    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV pool; None: a share of the free device memory."""
    kv_offloading_size: float = 0.0
    """GiB of host memory for the pages of idle sessions; 0: none, evicted KV is recomputed."""
    max_num_seqs: int = 64
    """Maximum rows, and thus sequences, in one step."""
    max_group_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 1.0
    """Maximum share of the rows of a step, and of the KV pages, for the turns of one group, that
    is, of one tenant."""
    max_num_batched_tokens: int | None = None
    """Maximum tokens in one step; None: 512 on a CPU, 8,192 on a GPU."""
    speculative_config: SpeculativeConfig | None = None
    """Speculative decoding; None: none."""
    threads: int | None = None
    """CPU threads that compute a step; None: one per core."""
    steps_ahead: int | None = None
    """Steps launched while the result of an earlier one is awaited: 0 or 1. None: 1 on a GPU, 0 on
    a CPU."""
    detach_grace_s: float = 30.0
    """Seconds for which turns continue after their client disconnects; then they are paused. Turns
    that no other client can resume end after 2 s."""
    detach_keep_s: float = 900.0
    """Seconds for which sessions are kept after their client disconnects; then they are closed."""
    standby_engine: bool = False
    """Keep a standby process that has imported its modules, to shorten the restart of a process
    that dies. It holds no model."""
    log_format: LogFormat = "console"
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector. None: no traces."""
    audit_every_step: bool = False
    """Check the invariants of the KV cache after every step, and blank each page that is handed
    out, so that what it held before cannot be read unseen; for tests."""


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
    is_standby: bool = False
    """Whether to load the model only once the parent sends a byte on its socket."""

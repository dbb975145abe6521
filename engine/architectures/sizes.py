"""The memory that a model takes, for its weights and for a session.

The families that run through transformers have no shape: what they take is known once they are
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from continuo.engine.config import CPU_BATCHED_TOKENS, CPU_FP32_PARAMETERS_MAX, EngineConfig
from continuo.engine.memory_plan import MemoryPlan, SessionMemory, plan_memory

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
QUANTIZED_BITS: Mapping[str, float] = {"int8": 8.5, "int4": 4.5}
"""Bits of a weight of a quantized matrix, with its share of the scale of its block."""


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model that our decoder runs. Bytes are those of a dtype, by its name."""

    parameters: int
    """Weights of the text part; a matrix that is both embedding and head counts once."""
    quantized: int
    """Weights of the matrices that `--quantization` stores in blocks; 0: it saves nothing."""
    tied_head: int
    """Weights of the embedding that is the head as well. Quantized, the head is a second copy."""
    embedding: int
    """Weights of the embedding, which is never quantized in memory."""
    token_elements: Mapping[int | None, int]
    """Elements of the keys and values of a token, by attention window; None: all tokens."""
    state_elements: int
    """Elements of a recurrent state in the dtype of the model."""
    state_elements_fp32: int
    """Elements of a recurrent state that are always in fp32."""
    context: int
    """Longest context that config.json states, in tokens."""

    @property
    def cpu_dtype(self) -> str:
        """Return the dtype that `--dtype auto` has on a CPU."""
        return "float32" if self.parameters <= CPU_FP32_PARAMETERS_MAX else "bfloat16"

    def weights_bytes(self, dtype: str, quantization: str | None = None) -> int:
        """Return the memory of the weights on a CPU."""
        each = DTYPE_BYTES[dtype]
        if quantization is None or not self.quantized:
            return self.parameters * each
        in_blocks = self.quantized + self.tied_head
        bits = QUANTIZED_BITS[quantization]
        return (self.parameters - self.quantized) * each + int(in_blocks * bits / 8)

    def gguf_bytes(self, file_bytes: int) -> int:
        """Return the most memory that the weights of a GGUF file take on a CPU: its matrices stay
        as they are, and the embedding is dequantized, beside the head if that is the same."""
        return file_bytes + self.embedding * DTYPE_BYTES[self.cpu_dtype]

    def plan(self, dtype: str, pool_bytes: int, config: EngineConfig | None = None) -> MemoryPlan:
        """Return what a KV pool of `pool_bytes` on a CPU holds, by default with the default
        options. Raises ModelError if it cannot hold one session."""
        memory = self.session_memory(dtype)
        return plan_memory(
            config or EngineConfig(), memory, self.context, pool_bytes, CPU_BATCHED_TOKENS
        )

    def session_memory(self, dtype: str) -> SessionMemory:
        each = DTYPE_BYTES[dtype]
        state = self.state_elements * each + self.state_elements_fp32 * DTYPE_BYTES["float32"]
        return SessionMemory({w: n * each for w, n in self.token_elements.items()}, state)

"""Errors of checkpoints that cannot run, each with what to use in place of them."""

from __future__ import annotations

from continuo.engine.architectures.known import find_refusal
from continuo.engine.errors import ModelError

ALTERNATIVES = ("Qwen3ForCausalLM", "LlamaForCausalLM")
"""Architectures that errors name as alternatives: common ones that have small checkpoints."""
USE_ANOTHER_ARCHITECTURE = (
    f"use a model of another architecture, such as {' or '.join(ALTERNATIVES)}"
)
USE_UNQUANTIZED = (
    "use the unquantized checkpoint in safetensors, on a CPU with --quantization int8, or a GGUF "
    "file"
)


def unsupported_architecture(where: object, architecture: str, reason: str) -> ModelError:
    """Create the error of an architecture that cannot run. `reason`: what the loader found; that of
    a known architecture comes before it."""
    known = find_refusal(architecture)
    if known is not None and known != reason:
        reason = f"{known} ({reason})"
    return ModelError(
        f"{where}: architecture {architecture} cannot run here: {reason}; "
        f"{USE_ANOTHER_ARCHITECTURE}"
    )


def quantized_checkpoint(where: object, how: str | None = None) -> ModelError:
    """Create the error of a checkpoint with quantized weights. `how`: the format, if known."""
    named = f" ({how})" if how else ""
    return ModelError(
        f"{where}: its weights are quantized{named}, which is not supported; {USE_UNQUANTIZED}"
    )

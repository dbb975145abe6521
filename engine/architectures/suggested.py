"""Small models of the Hugging Face hub that answer well for their size, with their sizes."""

from collections.abc import Mapping
from typing import Any

from continuo.engine.architectures.config_schemas import read_by_schema
from continuo.engine.architectures.families import read_shape
from continuo.engine.architectures.shape_sizes import measure_shape
from continuo.engine.architectures.sizes import ModelSize

_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def _config(kind: str, *sizes: int, **others: Any) -> dict[str, Any]:
    """Return the fields of a config.json that sizes depend on, with tied embeddings by default."""
    architecture = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    fields = dict(zip(_FIELDS, sizes, strict=True)) | {"rms_norm_eps": 1e-6}
    named = {"model_type": kind, "architectures": [f"{architecture}ForCausalLM"]}
    return {**named, **fields, "tie_word_embeddings": True, **others}


_CONFIGS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": _config("llama", 49152, 576, 30, 9, 3, 1536, 8192),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _config("llama", 49152, 960, 32, 15, 5, 2560, 8192),
    "Qwen/Qwen3-0.6B": _config("qwen3", 151936, 1024, 28, 16, 8, 3072, 40960),
    "Qwen/Qwen2.5-1.5B-Instruct": _config("qwen2", 151936, 1536, 28, 12, 2, 8960, 32768),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _config("llama", 49152, 2048, 24, 32, 32, 8192, 8192),
    "Qwen/Qwen3-1.7B": _config("qwen3", 151936, 2048, 28, 16, 8, 6144, 40960),
    "Qwen/Qwen3-4B-Instruct-2507": _config("qwen3", 151936, 2560, 36, 32, 8, 9728, 262144),
    "Qwen/Qwen3-8B": _config(
        "qwen3", 151936, 4096, 36, 32, 8, 12288, 40960, tie_word_embeddings=False
    ),
}
"""Configs as in their repositories. All models are instruction-tuned, and under Apache-2.0."""


def measure_suggested() -> Mapping[str, ModelSize]:
    """Return the sizes of the models, the smallest first, by their hub id."""
    sizes: dict[str, ModelSize] = {}
    for name, values in _CONFIGS.items():
        config = read_by_schema(values)
        shape = None if config is None else read_shape(config, set())
        assert config is not None
        assert shape is not None
        sizes[name] = measure_shape(shape, config.max_position_embeddings, runs_in_c=True)
    return sizes
